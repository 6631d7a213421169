"""Pictures on the real vLLM, for tiny models of each type: whether its prompts are those that the API makes.

The API's own code makes the prompt, of what the engine says of blank pictures; the engine gets a picture of noise, and
says whether its prompt is another one.
"""

import os
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from app.dispatch.media_reader import Learned, Origin, Sample
from app.dispatch.models import Model
from app.engines import create_engine
from app.engines.base import Engine, GenerateRequest, MediaExpander, MediaInput, StepOutput
from app.errors import XylemError
from app.ids import RunId
from app.media.picture import picture_of
from app.messages import Media, MediaSign, Sampling
from app.openai.media_prompt import Expanded, expanded, markers_of
from app.openai.prompt import chat_prompt
from app.openai.schemas import ChatRequest
from app.openai.validation import validated
from app.pools import Pool
from app.telemetry import Meters
from app.tokenizer import load_tokenizer
from ops.models.seeing import SEEING, written

SIZES = ((336, 336), (480, 640), (1080, 1920), (900, 300), (64, 2000), (1500, 1000), (20, 20), (897, 895))
_CONTEXT = 16_384
_numbers = count()


class Seen(Struct, frozen=True, kw_only=True):
    """A type of model, with a picture of each size."""

    name: str
    starts: str = ""  # why it doesn't
    refused: str = ""  # why it takes no pictures, or one of them
    wrong: int = 0  # sizes for which the engine's prompt was another one
    answered: int = 0  # pictures
    learn_ms: list[float] = []  # of each size but the first


async def seen(name: str, base: Path, sizes: Sequence[tuple[int, int]] = SIZES) -> Seen:
    """`base`: a model with the tokenizer that this one gets. Raises nothing that is the model's fault."""
    with tempfile.TemporaryDirectory() as made:
        path = written(name, Path(made), base)
        args = {
            "load_format": "dummy", "dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 2**28,
            "max_num_batched_tokens": _CONTEXT, "limit_mm_per_prompt": dict(SEEING[name].limits),
        }  # fmt: skip
        pool = Pool(model="m", engine="vllm", path=path, max_running=2, max_model_len=_CONTEXT, args=args)
        engine = create_engine(pool)
        try:
            info = await engine.start()
            signs = {sign.kind: sign for sign in info.signs}
            if "image" not in signs or not isinstance(engine, MediaExpander):
                return Seen(name=name, refused="its processor can't be asked")
            return await _asked(name, engine, _model(pool), signs["image"], sizes)
        except XylemError as exc:
            return Seen(name=name, starts=exc.message[:200])
        finally:
            await engine.close()


async def _asked(name: str, engine: Any, model: Model, sign: MediaSign, sizes: Sequence[tuple[int, int]]) -> Seen:
    row, times = Seen(name=name), list[float]()
    for shape in sizes:
        begun = time.perf_counter()
        try:
            tokens = await engine.expansion("image", shape, 0)
            times.append((time.perf_counter() - begun) * 1e3)
            picture, prompt = _prompt(model, sign, shape, tokens)
            steps = [step async for step in _answer(engine, prompt, picture)]
        except XylemError as exc:
            return replace(row, refused=f"{shape[1]} x {shape[0]}: {exc.message[:200]}", learn_ms=times[1:])
        wrong = any(step.expanded for step in steps)
        row = replace(row, wrong=row.wrong + wrong, answered=row.answered + any(step.tokens for step in steps))
    return replace(row, learn_ms=times[1:])


def _model(pool: Pool) -> Model:
    return Model("m", (), (), None, load_tokenizer(pool.model_dir, None, "file"), _CONTEXT, Meters("pictures"))


def _prompt(model: Model, sign: MediaSign, shape: tuple[int, int], tokens: list[int]) -> tuple[bytes, Expanded]:
    """The picture comes first, so that it meets the template's own line feed."""
    height, width = shape
    made = picture_of(height, width, os.urandom(3 * height * width))
    origin = Origin("image", "data:1")
    media = Media("image", made.sha256, shape)
    samples = {origin: Sample(media, made.rgb, becomes=Learned(sign, {0: tokens}))}
    parts = [{"type": "image_url", "image_url": {"url": origin.url}}, {"type": "text", "text": "What is it?"}]
    body = validated(ChatRequest, {"model": "m", "messages": [{"role": "user", "content": parts}]})
    text = chat_prompt(model.tokenizer, body.messages, body, markers_of(model, samples), samples)
    ids = model.tokenizer.encode(text, add_special_tokens=False)
    return made.rgb, expanded(model, ids, [origin], samples, "messages")


async def _answer(engine: Engine, prompt: Expanded, picture: bytes) -> AsyncIterator[StepOutput]:
    media = [MediaInput(one, picture) for one in prompt.media]
    sampling = Sampling(max_tokens=2, temperature=0.0, ignore_eos=True)
    run = RunId(f"seen-{next(_numbers)}")
    async for step in engine.generate(
        GenerateRequest(run, prompt.prompt, sampling, media=media, written=prompt.written)
    ):
        yield step


def figures(rows: Sequence[Seen]) -> dict[str, float]:
    """Of `make bench NAME=models`; of the types that load."""
    loaded = [row for row in rows if not row.starts]
    times = [one for row in loaded for one in row.learn_ms]
    return {
        "pictures_refused": sum(bool(row.refused) for row in loaded),
        "picture_families": sum(bool(row.answered) and not row.refused for row in loaded),
        "picture_tokens_wrong": sum(row.wrong for row in loaded),
        "picture_learn_ms": round(median(times), 1) if times else 0.0,
        "picture_learn_ms_most": round(max(times, default=0.0), 1),
        "picture_types": len(loaded),
    }
