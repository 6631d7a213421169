"""Asks vLLM's own processor, with blank media, how it writes pictures, sound and videos in a prompt.

The processor runs in the thread in which vLLM itself runs it, one call after the other.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import structlog
import vllm
from msgspec.structs import replace
from PIL import Image
from vllm.multimodal.processing.context import TimingContext
from vllm.multimodal.processing.inputs import ProcessorInputs
from vllm.multimodal.processing.processor import BaseMultiModalProcessor
from vllm.multimodal.registry import MultiModalRegistry
from vllm.v1.engine.async_llm import AsyncLLM

from app.engines.media_digest import media_digest
from app.errors import EngineFailed, RequestError
from app.messages.media import TENTHS, MediaKind, MediaSign

log = structlog.get_logger(__name__)
T = TypeVar("T")

_USUAL: dict[MediaKind, tuple[int, ...]] = {"image": (224, 224), "audio": (16_000,), "video": (4, 224, 224, 2 * TENTHS)}
_LINES = ("\n", "\n\n")  # what some tokenizers join where a picture's own lines meet those of the text
# Of two in one prompt that differ in length vLLM's engine dies: "Expected multimodal embeddings to be a sequence of 2D
# tensors".
_ALONE = {("llava_onevision", "video")}


class _Written(NamedTuple):
    ids: list[int]
    ranges: list[tuple[int, int]]  # of each medium, begin and end


async def signs_of(engine: AsyncLLM, kinds: Sequence[MediaKind]) -> tuple[MediaSign, ...]:
    """Signs of the kinds about which the processor can be asked. Others are logged: such media are refused."""
    signs: list[MediaSign] = []
    for kind in (kind for kind in kinds if kind in _USUAL):
        try:
            signs.append(await _apart(engine, partial(sign_of, engine.model_config, _processor(engine), kind)))
        except Exception as exc:  # noqa: BLE001 (whatever a model's own processor raises: text goes on)
            log.error("media_sign_not_found", kind=kind, error=repr(exc))
    return tuple(signs)


async def expansion(engine: AsyncLLM, sign: MediaSign, shape: Sequence[int], number: int, of: int) -> list[int]:
    """Token ids, as of `MediaExpander.expansion`. Raises: RequestError; EngineFailed."""
    try:
        return await _apart(engine, partial(tokens_of, _processor(engine), sign, shape, number, of))
    except ValueError as exc:  # so processors refuse a shape
        raise RequestError(f"the model can't take it: {exc.__cause__ or exc}") from exc  # vLLM's own quotes all data
    except Exception as exc:  # whatever else a model's own processor raises
        raise EngineFailed(f"its processor failed: {exc!r}") from exc


async def row_token(engine: AsyncLLM, sign: MediaSign) -> int | None:
    """The token that stands for each row of an encoded medium; None if there are several, or none can be told."""

    def found() -> int | None:
        inputs = _made(_processor(engine), sign.kind, _shown(_processor(engine), sign, 1), [_USUAL[sign.kind]])
        (place,) = inputs["mm_placeholders"][sign.kind]
        tokens = inputs["prompt_token_ids"][place.offset : place.offset + place.length]
        are_rows = [True] * len(tokens) if place.is_embed is None else place.is_embed.tolist()
        rows = {token for token, is_row in zip(tokens, are_rows, strict=True) if is_row}
        return rows.pop() if len(rows) == 1 else None

    return await _apart(engine, found)


def sign_of(config: Any, processor: BaseMultiModalProcessor, kind: MediaKind) -> MediaSign:
    """Raises: ValueError if this processor does it in another way; and what it raises."""
    marker, target = _found(config, processor, kind)
    sign = MediaSign(kind, _digest(config), marker, tuple(target), _joins(processor))
    if not target:
        sign = replace(sign, first=_first(processor, kind))
    several = processor.info.allowed_mm_limits.get(kind, 0) > 1 and (config.hf_config.model_type, kind) not in _ALONE
    is_numbered = _are_numbered(processor, sign) if several else None
    return replace(
        sign,
        numbered=bool(is_numbered),
        most=_most(config, processor, kind),
        counted=is_numbered is not None and _counts(processor),
        alone=is_numbered is None,
    )


def _counts(processor: BaseMultiModalProcessor) -> bool:
    """Whether what stands for one depends on how many there are.

    vLLM's cache of processed media needs that it doesn't, so processors for which it does go around the cache.
    """
    own = type(processor)._cached_apply_hf_processor  # noqa: SLF001 (nothing else says it)
    return own is not BaseMultiModalProcessor._cached_apply_hf_processor  # noqa: SLF001 (it compares)


def _first(processor: BaseMultiModalProcessor, kind: MediaKind) -> tuple[int, ...]:
    """The tokens behind which the media of a prompt are put that has no sign of them. Raises: as `sign_of`."""
    begin = processor.info.get_tokenizer().bos_token_id
    letter = _encoded(processor, "a")
    for first in ([], [begin]):
        prompt = [*first, *letter]
        try:
            one = _applied(processor, kind, prompt, [_USUAL[kind]])
        except (AssertionError, RuntimeError, ValueError):  # so vLLM says that it found no place
            continue
        (place, end), *_ = one.ranges
        if (one.ids[:place], one.ids[end:]) == (first, letter):
            return tuple(first)
    raise ValueError("it changes more of a prompt than where the medium is")


def _found(config: Any, processor: BaseMultiModalProcessor, kind: MediaKind) -> tuple[str, list[int]]:
    """The marker that is replaced, and its tokens that are; none where the medium is put into the prompt.

    It is as vLLM writes it for templates that take texts; or, where the model's class has that of another tokenizer, as
    in the prompts that vLLM warms up with. Raises: as `sign_of`.
    """
    usual, warm = _model_class(config).get_placeholder_str(kind, 1), processor.dummy_inputs.get_dummy_text({kind: 1})
    if usual:
        try:
            return usual, _target(processor, kind, usual)
        except (AssertionError, RuntimeError, ValueError):  # so vLLM says that it found none
            if warm == usual:
                raise
    return (warm, _target(processor, kind, warm)) if warm else ("", [])


def _target(processor: BaseMultiModalProcessor, kind: MediaKind, marker: str) -> list[int]:
    """The marker's tokens that are replaced, between two letters. Raises: as `sign_of`."""
    marker_ids, letter = _encoded(processor, marker), _encoded(processor, "a")
    prompt = [*letter, *marker_ids, *letter]
    one = _applied(processor, kind, prompt, [_USUAL[kind]])
    begin, end = one.ranges[0]
    target = prompt[begin : len(prompt) - (len(one.ids) - end)]
    if not target or one.ids[:begin] + target + one.ids[end:] != prompt:
        raise ValueError(f"no token of {marker!r} is replaced by what stands for it")
    return target


def _are_numbered(processor: BaseMultiModalProcessor, sign: MediaSign) -> bool | None:
    """Whether of two alike the second one becomes something else; None if it takes no two, or not by one sign."""
    try:
        two = _applied(processor, sign.kind, _shown(processor, sign, 2), [_USUAL[sign.kind]] * 2)
    except (AssertionError, RuntimeError, ValueError):  # so vLLM says that it found no place, or could not
        return None
    first, second = (two.ids[begin:end] for begin, end in two.ranges)
    return first != second


def tokens_of(
    processor: BaseMultiModalProcessor, sign: MediaSign, shape: Sequence[int], number: int, of: int
) -> list[int]:
    """Raises: what the processor raises for a shape that the model can't take."""
    before = number if sign.numbered else 0
    behind = max(0, of - before - 1) if sign.counted else 0
    usual = [_USUAL[sign.kind]]
    prompt = _shown(processor, sign, before + 1 + behind)
    result = _applied(processor, sign.kind, prompt, [*usual * before, tuple(shape), *usual * behind])
    begin, end = result.ranges[before]
    return result.ids[begin:end]


def _shown(processor: BaseMultiModalProcessor, sign: MediaSign, count: int) -> list[int]:
    """A prompt with so many, between letters."""
    letter = _encoded(processor, "a")
    return [*sign.first, *letter, *[token for _ in range(count) for token in (*sign.target, *letter)]]


def expanded_ids(
    processor: BaseMultiModalProcessor, kind: MediaKind, prompt: list[int], shapes: Sequence[tuple[int, ...]]
) -> list[int]:
    """The prompt with what stands for blank media of these shapes. Raises: what the processor raises."""
    return _applied(processor, kind, prompt, shapes).ids


def _applied(
    processor: BaseMultiModalProcessor, kind: MediaKind, prompt: list[int], shapes: Sequence[tuple[int, ...]]
) -> _Written:
    inputs = _made(processor, kind, prompt, shapes)
    ranges = [(one.offset, one.offset + one.length) for one in inputs["mm_placeholders"][kind]]
    return _Written(list(inputs["prompt_token_ids"]), ranges)


def _made(
    processor: BaseMultiModalProcessor, kind: MediaKind, prompt: list[int], shapes: Sequence[tuple[int, ...]]
) -> Any:
    items = processor.info.parse_mm_data({kind: [_blank(kind, shape) for shape in shapes]})
    return processor.apply(ProcessorInputs(prompt=prompt, mm_data_items=items), TimingContext(enabled=False))


def _blank(kind: MediaKind, shape: tuple[int, ...]) -> Any:
    if kind == "audio":
        return np.zeros(shape[0], np.float32), 16_000
    if kind == "video":
        return np.zeros((*shape[:3], 3), np.uint8), video_metadata(shape)
    height, width = shape
    return Image.new("RGB", (width, height))


def video_metadata(shape: Sequence[int]) -> dict[str, Any]:
    """Metadata as vLLM's own decoder would give it for a video of this shape: its frames are taken already."""
    frames, height, width, tenths = shape
    long_s = tenths / TENTHS
    return {
        "fps": frames / long_s,
        "duration": long_s,
        "total_num_frames": frames,
        "frames_indices": [*range(frames)],
        "width": width,
        "height": height,
        "video_backend": "opencv",
        "do_sample_frames": False,
    }


def _model_class(config: Any) -> Any:
    return MultiModalRegistry()._get_model_cls(config)  # noqa: SLF001 (nothing else knows it)


def _encoded(processor: BaseMultiModalProcessor, text: str) -> list[int]:
    return list(processor.info.get_tokenizer().encode(text, add_special_tokens=False))


def _joins(processor: BaseMultiModalProcessor) -> tuple[tuple[int, int, int], ...]:
    """Pairs of tokens that it writes as one, as Gemma 3's does with line feeds, in its order."""
    tokens = [ids[0] for text in _LINES if len(ids := _encoded(processor, text)) == 1]
    if len(tokens) < len(_LINES):
        return ()
    one, two = tokens
    joins: list[tuple[int, int, int]] = []
    for pair in ((one, two), (two, one), (two, two)):
        ids_of_pair, _ = processor._apply_token_matches([*pair], {})  # noqa: SLF001 (what models override for this)
        if len(ids_of_pair) == 1:
            joins.append((*pair, ids_of_pair[0]))
    return tuple(joins)


def _most(config: Any, processor: BaseMultiModalProcessor, kind: MediaKind) -> int:
    """Tokens that one may become, as vLLM itself expects."""
    limits = processor.info.get_mm_max_tokens_per_item(config.max_model_len, {kind: 1})
    if limits is not None and kind in limits:
        return int(limits[kind])
    inputs = processor.get_dummy_mm_inputs({kind: 1})
    return max(int(one.length) for one in inputs["mm_placeholders"][kind])


def _digest(config: Any) -> str:
    options = config.multimodal_config.mm_processor_kwargs or {}
    return media_digest(vllm.__version__, json.dumps(options, sort_keys=True, default=str), Path(config.model))


def _processor(engine: AsyncLLM) -> BaseMultiModalProcessor:
    return engine.renderer.get_mm_processor()


async def _apart(engine: AsyncLLM, work: Callable[[], T]) -> T:
    thread = engine.renderer._mm_executor  # noqa: SLF001 (processors aren't made for two threads)
    return await asyncio.get_running_loop().run_in_executor(thread, work)
