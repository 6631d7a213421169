"""The time to the first token of a second question about a picture, against that of the first, on real vLLM."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from app.cli.stack import cpu_shares, usable_cores
from app.media.placeholders import pictures_of
from app.tokenizing.tokenizer import load_tokenizer
from ops.bench.events import cached_of, events
from ops.bench.media.jpeg import picture
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
    size.needs("real vLLM", "vllm")
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
            part = picture(number, _SIDE)
            turns.append(
                Turn(
                    first=_ask(client, system.model, [part, _part(_FIRST)]),
                    again=_ask(client, system.model, [part, _part(_SECOND)]),
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
        for event in events(answer):
            if not ttft_s and any(choice["finish_reason"] for choice in event["choices"]):
                ttft_s = time.perf_counter() - began
            if (usage := event.get("usage")) is not None:
                return Answer(ttft_s, usage["prompt_tokens"], cached_of(usage))
    raise Unavailable("/v1/chat/completions: ended without usage")
