"""Pictures and sound in prompts, as vLLM takes them: one token for each, which it expands itself."""

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import numpy as np
import structlog
from PIL import Image
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.outputs import RequestOutput
from vllm.v1.engine.async_llm import AsyncLLM

from app.engines.base import Embedding, EmbeddingShape, GenerateRequest, MediaInput, PictureRequest
from app.engines.vllm.embeddings import EmbeddingFolder
from app.errors import SettingsError
from app.messages import MediaKind

log = structlog.get_logger(__name__)

_RATE = 16_000  # samples a second


def kinds(engine: AsyncLLM) -> tuple[MediaKind, ...]:
    """The kinds that the loaded model takes, within the pool's `limit_mm_per_prompt`."""
    embeds: tuple[MediaKind, ...] = ("embeds",) if engine.model_config.enable_prompt_embeds else ()
    if engine.renderer.mm_processor is None:  # of a model for texts, or where the pool lets no kind in
        return embeds
    limits = engine.renderer.get_mm_processor().info.allowed_mm_limits
    known: tuple[MediaKind, ...] = ("image", "audio")
    return (*(kind for kind in known if limits.get(kind)), *embeds)


def prompt_with_media(engine: AsyncLLM, request: GenerateRequest) -> dict[str, Any]:
    """A prompt that vLLM expands itself: it would expand an expanded one again."""
    data: dict[MediaKind, list[Any]] = {}
    uuids: dict[MediaKind, list[str]] = {}
    for one in request.media:
        kind = one.media.kind
        data.setdefault(kind, []).append(_picture(one) if kind == "image" else (np.frombuffer(one.data, "<f4"), _RATE))
        uuids.setdefault(kind, []).append(one.media.sha256)
    ids = request.written or _written(engine.model_config.hf_config, request)
    prompt = {"prompt_token_ids": ids, "multi_modal_data": data, "multi_modal_uuids": uuids}
    return prompt if request.cache_salt is None else prompt | {"cache_salt": request.cache_salt}


def _written(config: Any, request: GenerateRequest) -> list[int]:
    """The prompt with one token for each. Tokens of the answer are behind them all."""
    ids: list[int] = []
    last = 0
    for one in (given.media for given in request.media):
        ids += request.prompt[last : one.offset]
        ids.append(config.image_token_id if one.kind == "image" else config.audio_token_id)
        last = one.offset + one.length
    return ids + request.prompt[last:]


def shape(config: VllmConfig) -> EmbeddingShape:
    """Of encoded pictures that the loaded model takes. Raises: SettingsError for one that names no token for them."""
    model = config.model_config
    dtype = str(model.dtype).removeprefix("torch.")
    token = getattr(model.hf_config, "image_token_id", None)
    if token is None:
        raise SettingsError(f"Pictures of {model.hf_config.model_type} can't be encoded apart: leave out `embeddings`.")
    return EmbeddingShape(model.get_inputs_embeds_size(), dtype, token)


async def encoded(engine: AsyncLLM, folder: EmbeddingFolder, request: PictureRequest) -> Embedding:
    """Raises: vLLM's errors, EngineFailed."""
    name = secrets.token_hex(16)  # vLLM writes nothing for a picture that it remembers
    prompt: Any = {
        "prompt_token_ids": [engine.model_config.hf_config.image_token_id],
        "multi_modal_data": {"image": [_picture(request.picture)]},
        "multi_modal_uuids": {"image": [name]},
    }
    outputs = engine.generate(prompt, SamplingParams(max_tokens=1), request.id, trace_headers=request.trace_headers)
    async with aclosing(outputs):
        async for out in outputs:
            if request.placeholders and list(out.prompt_token_ids or ()) != request.placeholders:
                log.error("media_expanded_otherwise", ours=len(request.placeholders), vllm=len(out.prompt_token_ids))
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


def _picture(one: MediaInput) -> Image.Image:
    height, width = one.media.shape
    return Image.frombytes("RGB", (width, height), one.data)
