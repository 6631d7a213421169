"""Pictures on the real vLLM, for tiny models of each type: whether its prompts are those that the API makes.

The API's own code makes the prompt, of what the engine says of blank pictures; the engine gets a picture of noise, and
says whether its prompt is another one. Of a type that can't run here vLLM's processor is asked, without an engine.
"""

import hashlib
import os
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from itertools import count
from math import prod
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from app.dispatch.media.media_reader import Learned, Sample
from app.dispatch.models.models import Model
from app.engines.base import Engine, GenerateRequest, MediaExpander, MediaInput, StepOutput
from app.errors import EngineDead, XylemError
from app.ids import RunId
from app.messages.job import Sampling
from app.messages.media import Media, MediaKind, MediaSign
from app.openai.media import origins_of
from app.openai.media_prompt import Expanded, encoded, expanded, markers_of
from app.openai.prompt import chat_prompt
from app.openai.schemas import ChatRequest
from app.pools.schema import Pool
from app.runner.engine_factory import create_engine
from app.schemas.validation import validated
from app.telemetry import Meters
from app.tokenizing.tokenizer import load_tokenizer
from ops.models.seeing import SEEING, written

Shape = tuple[int, ...]  # as in `Media`

SIZES: tuple[Shape, ...] = (
    (336, 336),
    (480, 640),
    (1080, 1920),
    (900, 300),
    (64, 2000),
    (1500, 1000),
    (20, 20),
    (897, 895),
)
# Of sounds: samples, of which there are 16,000 a second.
LENGTHS: tuple[Shape, ...] = tuple((n,) for n in (16_000, 3_200, 7_777, 48_000, 80_001, 161_234, 320_000, 479_999))
# Of videos: frames, height, width, tenths of a second.
VIDEOS: tuple[Shape, ...] = (
    (4, 224, 224, 20),
    (8, 336, 448, 95),
    (2, 64, 64, 3),
    (7, 100, 300, 1200),
    (3, 640, 360, 31),
    (8, 720, 1280, 600),
    (5, 30, 900, 77),
    (6, 500, 500, 59),
)
_SHAPES: Mapping[MediaKind, tuple[Shape, ...]] = {"image": SIZES, "audio": LENGTHS, "video": VIDEOS}
_WITH_VIDEOS = " with videos"
LOOKS = (*SEEING, *(f"{name}{_WITH_VIDEOS}" for name, one in SEEING.items() if "video" in one.limits))
_CONTEXT = 16_384
_numbers = count()


class Seen(Struct, frozen=True, kw_only=True):
    """A type of model, with a picture of each size."""

    name: str
    starts: str = ""  # why it doesn't
    refused: str = ""  # why it takes no pictures, or one of them
    counted: int = 0  # sizes for which the engine's prompt was compared, or its processor's
    wrong: int = 0  # of these, for which it was another one
    answered: int = 0  # pictures
    learn_ms: list[float] = []  # of each size but the first


async def seen(name: str, base: Path, most: int | None = None) -> Seen:
    """`name`: one of `LOOKS`. `base`: a model with the tokenizer that this one gets. `most`: shapes; None: all.

    Raises nothing that is the model's fault.
    """
    of, kind = name.removesuffix(_WITH_VIDEOS), kind_of(name)
    model = SEEING[of]
    limits = {"image": 1, "video": 2} if kind == "video" else model.limits
    prompts = _prompts(limits, kind, most)
    with tempfile.TemporaryDirectory() as folder_name:
        try:
            path = written(of, Path(folder_name), base)
        except ImportError as exc:  # a package that only this type's processor needs
            return Seen(name=name, starts=str(exc))
        args = {
            "load_format": "dummy", "dtype": model.dtype, "enforce_eager": True, "kv_cache_memory_bytes": 2**28,
            "max_num_batched_tokens": _CONTEXT, "limit_mm_per_prompt": dict(limits),
        }  # fmt: skip
        pool = Pool(model="m", engine="vllm", path=path, max_running=2, max_model_len=_CONTEXT, args=args)
        if model.large:
            return _without_engine(Seen(name=name, starts=model.large), pool, kind, prompts)
        engine = create_engine(pool)
        try:
            info = await engine.start()
            signs = {sign.kind: sign for sign in info.signs}
            if kind not in signs or not isinstance(engine, MediaExpander):
                return Seen(name=name, refused="its processor can't be asked")
            return await _asked(Seen(name=name), engine, _model(pool), signs[kind], prompts)
        except XylemError as exc:
            reason = exc.message[:200]
        finally:
            await engine.close()
        return _without_engine(Seen(name=name, starts=reason), pool, kind, prompts)


def kind_of(name: str) -> MediaKind:
    """The kind about which a model is asked in this look."""
    if name.endswith(_WITH_VIDEOS):
        return "video"
    return "image" if "image" in SEEING[name].limits else "audio"


def _prompts(limits: Mapping[str, int], kind: MediaKind, most: int | None) -> list[tuple[Shape, ...]]:
    """Prompts of one medium each; and one of several, if the model takes so many."""
    shapes, several = _SHAPES[kind][:most], min(3, limits.get(kind, 1))
    return [*((shape,) for shape in shapes), *([tuple(shapes[:several])] if several > 1 else [])]


async def _asked(row: Seen, engine: Any, model: Model, sign: MediaSign, prompts: Sequence[tuple[Shape, ...]]) -> Seen:
    times = list[float]()
    for shapes in _allowed(sign, prompts):
        start = time.perf_counter()
        try:
            tokens = [
                await engine.expansion(sign.kind, shape, *_place(sign, i, shapes)) for i, shape in enumerate(shapes)
            ]
            if len(shapes) == 1:
                times.append((time.perf_counter() - start) * 1e3)
            prompt = _prompt(model, sign, shapes, tokens)
            steps = [step async for step in _answer(engine, prompt)]
        except EngineDead:  # it can't run here
            raise
        except XylemError as exc:
            return replace(row, refused=f"{shapes}: {exc.message[:200]}", learn_ms=times[1:])
        row = replace(
            row,
            counted=row.counted + 1,
            wrong=row.wrong + any(step.expanded for step in steps),
            answered=row.answered + any(step.tokens for step in steps),
        )
    return replace(row, learn_ms=times[1:])


def _allowed(sign: MediaSign, prompts: Sequence[tuple[Shape, ...]]) -> list[tuple[Shape, ...]]:
    return [shapes for shapes in prompts if len(shapes) == 1 or not sign.alone]


def _place(sign: MediaSign, number: int, shapes: Sequence[Shape]) -> tuple[int, int]:
    return number if sign.numbered else 0, len(shapes) if sign.counted else 1


def _without_engine(row: Seen, pool: Pool, kind: MediaKind, prompts: Sequence[tuple[Shape, ...]]) -> Seen:
    """Does as `_asked`, with the processor that the engine would have."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.multimodal import MULTIMODAL_REGISTRY

    from app.engines.vllm.expansion import expanded_ids, sign_of, tokens_of

    times = list[float]()
    engine_args = {name: pool.args[name] for name in ("limit_mm_per_prompt", "dtype")}
    try:
        config = EngineArgs(model=str(pool.path), max_model_len=_CONTEXT, **engine_args).create_model_config()
        processor = MULTIMODAL_REGISTRY.create_processor(config)
        sign = sign_of(config, processor, kind)
        for shapes in _allowed(sign, prompts):
            start = time.perf_counter()
            tokens = [tokens_of(processor, sign, shape, *_place(sign, i, shapes)) for i, shape in enumerate(shapes)]
            if len(shapes) == 1:
                times.append((time.perf_counter() - start) * 1e3)
            prompt = _prompt(_model(pool), sign, shapes, tokens).shown
            token_ids = expanded_ids(processor, kind, prompt.written, shapes)
            row = replace(row, counted=row.counted + 1, wrong=row.wrong + (token_ids != prompt.prompt))
    except (ValueError, ImportError, AttributeError, XylemError) as exc:
        return replace(row, refused="" if isinstance(exc, ImportError) else f"{exc!r}"[:200], learn_ms=times[1:])
    return replace(row, learn_ms=times[1:])


def _model(pool: Pool) -> Model:
    return Model("m", (), (), None, load_tokenizer(pool.model_dir, None, "file"), _CONTEXT, Meters("pictures"))


class _Prompt(NamedTuple):
    shown: Expanded
    data: Sequence[bytes]  # of its media


def _prompt(model: Model, sign: MediaSign, shapes: Sequence[Shape], tokens: Sequence[Sequence[int]]) -> _Prompt:
    """The media come first, so that they meet the template's own line feed."""
    media_data = [_noise(sign.kind, shape) for shape in shapes]
    parts = [_part(sign.kind, number) for number in range(len(shapes))]
    body = validated(
        ChatRequest,
        {"model": "m", "messages": [{"role": "user", "content": [*parts, {"type": "text", "text": "What is it?"}]}]},
    )
    origins = origins_of(body.messages)
    samples = {}
    for i, (origin, shape, data) in enumerate(zip(origins, shapes, media_data, strict=True)):
        number, of = _place(sign, i, shapes)
        media = Media(sign.kind, hashlib.sha256(data).hexdigest(), shape)
        samples[origin] = Sample(media, data, becomes=Learned(sign, {number: tokens[i]}, of))
    text = chat_prompt(model.tokenizer, body.messages, body, markers_of(model, samples), samples)
    ids = encoded(model, text, samples, partial(model.count, add_special_tokens=False))
    return _Prompt(expanded(model, ids, origins, samples, "messages"), media_data)


def _noise(kind: MediaKind, shape: Shape) -> bytes:
    if kind == "audio":
        return np.random.default_rng().uniform(-1, 1, shape).astype("<f4").tobytes()
    return os.urandom(3 * prod(shape[:3]))


def _part(kind: MediaKind, number: int) -> dict[str, Any]:
    if kind == "audio":
        return {"type": "input_audio", "input_audio": {"format": "wav", "data": f"AAA{number}"}}
    name = "video_url" if kind == "video" else "image_url"
    return {"type": name, name: {"url": f"data:{number}"}}


async def _answer(engine: Engine, prompt: _Prompt) -> AsyncIterator[StepOutput]:
    expansion = prompt.shown
    media = [MediaInput(one, data) for one, data in zip(expansion.media, prompt.data, strict=True)]
    sampling = Sampling(max_tokens=2, temperature=0.0, ignore_eos=True)
    run = RunId(f"seen-{next(_numbers)}")
    async for step in engine.generate(
        GenerateRequest(run, expansion.prompt, sampling, media=media, written=expansion.written)
    ):
        yield step


def figures(rows: Sequence[Seen]) -> dict[str, float]:
    """Figures of `make bench NAME=models`, for the types whose processors can be had here."""
    tried_rows = [row for row in rows if row.counted or row.refused]
    times = [one for row in tried_rows for one in row.learn_ms]
    return {
        "pictures_refused": sum(bool(row.refused) for row in tried_rows),
        "picture_families": sum(bool(row.answered) and not row.refused for row in tried_rows),
        "picture_tokens_wrong": sum(row.wrong for row in tried_rows),
        "picture_learn_ms": round(median(times), 1) if times else 0.0,
        "picture_learn_ms_most": round(max(times, default=0.0), 1),
        "picture_types": len(tried_rows),
    }
