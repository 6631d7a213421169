"""Pictures, sound and videos in prompts, as vLLM takes them: one token for each, which it expands itself."""

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import numpy as np
import structlog
from PIL import Image
from vllm import SamplingParams
from vllm.outputs import RequestOutput
from vllm.v1.engine.async_llm import AsyncLLM

from app.engines.base import Embedding, EmbeddingShape, GenerateRequest, MediaInput, PictureRequest
from app.engines.vllm.embeddings import EmbeddingFolder
from app.engines.vllm.expansion import row_token, video_metadata
from app.errors import EngineFailed, SettingsError
from app.messages.media import MediaKind, MediaSign

log = structlog.get_logger(__name__)

_RATE = 16_000  # samples a second


def kinds(engine: AsyncLLM) -> tuple[MediaKind, ...]:
    """The kinds that the loaded model takes, but for videos: these are told by their sign alone."""
    embeds: tuple[MediaKind, ...] = ("embeds",) if engine.model_config.enable_prompt_embeds else ()
    return (*(kind for kind in allowed(engine) if kind != "video"), *embeds)


def allowed(engine: AsyncLLM) -> list[MediaKind]:
    """The kinds that the loaded model takes, within the pool's `limit_mm_per_prompt`."""
    if engine.renderer.mm_processor is None:  # of a model for texts, or where the pool lets no kind in
        return []
    limits = engine.renderer.get_mm_processor().info.allowed_mm_limits
    all_kinds: tuple[MediaKind, ...] = ("image", "audio", "video")
    return [kind for kind in all_kinds if limits.get(kind)]


def prompt_with_media(engine: AsyncLLM, request: GenerateRequest) -> dict[str, Any]:
    """A prompt that vLLM expands itself: it would expand an expanded one again."""
    data: dict[MediaKind, list[Any]] = {}
    uuids: dict[MediaKind, list[str]] = {}
    for one in request.media:
        kind = one.media.kind
        data.setdefault(kind, []).append(_item(one))
        uuids.setdefault(kind, []).append(one.media.sha256)
    ids = request.written or _written(engine.model_config.hf_config, request)
    prompt = {"prompt_token_ids": ids, "multi_modal_data": data, "multi_modal_uuids": uuids}
    return prompt if request.cache_salt is None else prompt | {"cache_salt": request.cache_salt}


def _written(config: Any, request: GenerateRequest) -> list[int]:
    """The prompt with one token for each. Tokens of the answer are behind them all."""
    ids: list[int] = []
    last = 0
    for one in (medium.media for medium in request.media):
        ids += request.prompt[last : one.offset]
        ids.append(config.image_token_id if one.kind == "image" else config.audio_token_id)
        last = one.offset + one.length
    return ids + request.prompt[last:]


async def shape(engine: AsyncLLM, sign: MediaSign | None) -> EmbeddingShape:
    """The shape of encoded pictures that the loaded model takes. `sign`: of a picture.

    Raises: SettingsError for a model of which no token can be told that stands for a row.
    """
    model = engine.model_config
    token = None if sign is None or sign.counted else await row_token(engine, sign)
    if token is None:
        raise SettingsError(f"Pictures of {model.hf_config.model_type} can't be encoded apart: leave out `embeddings`.")
    levels = getattr(getattr(model.hf_config, "vision_config", None), "deepstack_visual_indexes", None) or ()
    return EmbeddingShape(model.get_inputs_embeds_size() * (1 + len(levels)), str(model.dtype)[len("torch.") :], token)


async def encoded(
    engine: AsyncLLM, folder: EmbeddingFolder, request: PictureRequest, sign: MediaSign | None
) -> Embedding:
    """`sign`: of a picture. Raises: vLLM's errors, EngineFailed."""
    if sign is None:
        raise EngineFailed("This model's processor can't be asked about pictures.")
    name = secrets.token_hex(16)  # vLLM writes nothing for a picture that it remembers
    prompt: Any = {
        "prompt_token_ids": [*sign.first, *sign.target],
        "multi_modal_data": {"image": [_picture(request.picture)]},
        "multi_modal_uuids": {"image": [name]},
    }
    outputs = engine.generate(prompt, SamplingParams(max_tokens=1), request.id, trace_headers=request.trace_headers)
    async with aclosing(outputs):
        async for out in outputs:
            own = list(out.prompt_token_ids or ())
            alone = not sign.joins and not sign.numbered  # what it becomes depends on nothing beside it
            if alone and request.placeholders and own[len(sign.first) :] != request.placeholders:
                log.error("media_expanded_otherwise", ours=len(request.placeholders), vllm=len(own))
    return await folder.take(name)


async def checked(
    outputs: AsyncGenerator[RequestOutput, None], request: GenerateRequest
) -> AsyncGenerator[RequestOutput, None]:
    """The same outputs. Says so if vLLM's expansion is another one: counts and block hashes are wrong then."""
    first = True
    async with aclosing(outputs):
        async for out in outputs:
            if first and (own := own_prompt(out, request)):
                log.error("media_expanded_otherwise", ours=len(request.prompt), vllm=len(own))
            first = False
            yield out


def own_prompt(out: RequestOutput, request: GenerateRequest) -> list[int]:
    """vLLM's, if it is another one."""
    if not request.media or not out.prompt_token_ids:
        return []
    own = list(out.prompt_token_ids)
    return [] if own == request.prompt else own


def _item(one: MediaInput) -> Any:
    match one.media.kind:
        case "image":
            return _picture(one)
        case "video":
            frames = np.frombuffer(one.data, np.uint8).reshape((*one.media.shape[:3], 3))
            return frames, video_metadata(one.media.shape)
    return np.frombuffer(one.data, "<f4"), _RATE


def _picture(one: MediaInput) -> Image.Image:
    height, width = one.media.shape
    return Image.frombytes("RGB", (width, height), one.data)
