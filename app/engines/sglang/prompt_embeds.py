"""Prompts of which rows are given instead of tokens: SGLang puts them in the place of their tokens' own rows.

It keeps no KV of such a request, and finds none: it knows blocks by their tokens alone.
"""

import inspect

from sglang.srt.entrypoints.engine import Engine
from sglang.srt.managers.embed_types import PositionalEmbeds
from sglang.srt.models.registry import ModelRegistry

from app.engines.base import GenerateRequest
from app.engines.prompt_rows import prompt_rows
from app.engines.sglang.media import Arguments
from app.errors import SettingsError


def check_model(engine: Engine) -> None:
    """Looks whether the loaded model takes rows; SGLang would end at a request with some. Raises: SettingsError."""
    manager = engine.tokenizer_manager
    model, _architecture = ModelRegistry.resolve_model_cls(manager.model_config.hf_config.architectures)
    takes_rows = "input_embeds" in inspect.signature(model.forward).parameters
    if manager.mm_processor is not None or not takes_rows or not hasattr(model, "get_input_embeddings"):
        raise SettingsError(f"prompt_embeds: SGLang's {model.__name__} takes none")


def overrides(engine: Engine, request: GenerateRequest) -> Arguments:
    """Raises: RequestError, EngineFailed."""
    config = engine.tokenizer_manager.model_config
    media, rows = prompt_rows(request, config.hidden_size, config.dtype)
    places = [*range(media.offset, media.offset + media.length)]
    embeds = PositionalEmbeds(embeds=rows, positions=places)
    return lambda _prompt: {"positional_embed_overrides": embeds}
