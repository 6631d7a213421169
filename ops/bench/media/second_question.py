"""The time to the first token of a second question about a picture, against that of the first, on real vLLM."""

import base64
import io
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import httpx
from PIL import Image

from app.cli.event_lines import event_lines
from app.cli.stack import cpu_shares, usable_cores
from app.media.placeholders import pictures_of
from app.tokenizing.tokenizer import load_tokenizer
from ops.bench.parts import Say
from ops.bench.processes import Unavailable
from ops.bench.size import Size
from ops.bench.systems import fleet
from tests.vlm import random_vlm

_SIDE = 896  # pixels
_LEAST = 1000  # picture tokens of a prompt
_FIRST, _SECOND = "What is in this picture?", "Which colours does it have, and where is the brightest of them?"


@dataclass(frozen=True)
class Answer:
    ttft_s: float
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True)
class Turn:
    """Answers about one picture, which is new."""

    first: Answer
    again: Answer  # to another question about it
    text: Answer  # to a question without a picture


def measured(out_dir: Path, size: Size, say: Say) -> dict[str, Any]:
    """`second_question_ttft_ratio`, its times, and its tokens. Raises: Unavailable."""
    size.needs("real vLLM")
    if find_spec("vllm") is None:
        raise Unavailable("vLLM is not installed")
    out_dir.mkdir(parents=True, exist_ok=True)
    say("making a model that sees")
    model = random_vlm("idefics3", size="large")
    pool = {
        "model": "bench", "engine": "vllm", "path": str(model), "block_size": 32, "max_model_len": 2048,
        "max_running": 8, "args": {"kv_cache_memory_bytes": 2**30, "limit_mm_per_prompt": {"image": 1}},
    }  # fmt: skip
    turns, pictures = list[Turn](), size.of(15, 5, 1)
    cores = {"VLLM_CPU_OMP_THREADS_BIND": cpu_shares(usable_cores(), 1)[0]}
    say("loading the system")
    with (
        fleet(out_dir / "xylem", {"sees": pool}, {"sees": 1}, more_env=cores) as system,
        httpx.Client(base_url=system.url, timeout=300) as client,
    ):
        for number in range(pictures + 1):  # the first warms up
            say(f"picture {number} of {pictures}")
            picture = _picture(number)
            turns.append(
                Turn(
                    first=_ask(client, system.model, [picture, _part(_FIRST)]),
                    again=_ask(client, system.model, [picture, _part(_SECOND)]),
                    text=_ask(client, system.model, [_part(f"{number}. {_SECOND}")]),
                )
            )
    return figures(turns[1:]) | {"second_question_picture_tokens": _picture_tokens(model)}


def figures(turns: Sequence[Turn]) -> dict[str, Any]:
    """Medians; the ratio is that of the pairs."""
    ratios = [turn.again.ttft_s / turn.first.ttft_s for turn in turns]
    return {
        "second_question_ttft_ratio": statistics.median(ratios),
        "first_question_ttft_ms": 1000 * statistics.median(turn.first.ttft_s for turn in turns),
        "second_question_ttft_ms": 1000 * statistics.median(turn.again.ttft_s for turn in turns),
        "text_question_ttft_ms": 1000 * statistics.median(turn.text.ttft_s for turn in turns),
        "second_question_cached_share": statistics.median(t.again.cached_tokens / t.again.prompt_tokens for t in turns),
        "first_question_cached_tokens": max(turn.first.cached_tokens for turn in turns),
        "second_question_pairs": [[turn.first.ttft_s, turn.again.ttft_s] for turn in turns],
    }


def _picture_tokens(model: Path) -> int:
    """Number of tokens of the picture itself, not between its tiles. Raises: Unavailable when they are too few."""
    family = pictures_of(model, load_tokenizer(model), {})
    assert family is not None
    tokens = family.tokens(_SIDE, _SIDE).count(family.token_id)
    if tokens < _LEAST:
        raise Unavailable(f"a picture has {tokens} tokens, which are fewer than {_LEAST}")
    return tokens


def _picture(number: int) -> dict[str, Any]:
    """A picture as a part of a message. Its colours are soft, as of a photo out of focus, and compress as photos do."""
    small = Image.frombytes("RGB", (16, 16), Random(number).randbytes(3 * 16 * 16))
    out = io.BytesIO()
    small.resize((_SIDE, _SIDE), Image.Resampling.BICUBIC).save(out, "JPEG", quality=90)
    url = f"data:image/jpeg;base64,{base64.b64encode(out.getvalue()).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def _part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _ask(client: httpx.Client, model: str, parts: list[dict[str, Any]]) -> Answer:
    """One token, and the usage behind it. Raises: Unavailable."""
    body = {
        "model": model, "messages": [{"role": "user", "content": parts}], "max_tokens": 1, "temperature": 0,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    began, ttft_s = time.perf_counter(), 0.0
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        if answer.status_code != 200:
            raise Unavailable(f"/v1/chat/completions: {answer.read()[:200]!r}")
        for line in event_lines(answer):
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise Unavailable(f"/v1/chat/completions: {event['error']}")
            if not ttft_s and any(choice["finish_reason"] for choice in event["choices"]):
                ttft_s = time.perf_counter() - began
            if (usage := event.get("usage")) is not None:
                cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
                return Answer(ttft_s, usage["prompt_tokens"], cached_tokens)
    raise Unavailable("/v1/chat/completions: ended without usage")


if __name__ == "__main__":
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        found = measured(Path(folder), Size.QUICK, lambda what: print(what, file=sys.stderr))
    print(json.dumps(found))
