"""A vLLM plugin: what vLLM does not do for an answer begun elsewhere; and a function that torchvision may lack.

vLLM begins a grammar at the end of the prompt, and a continued answer has its tokens so far there. If those end within
a character, its text would begin with all of the prompt's. Not a part of the adapter: each vLLM process imports the
plugin, and would import the adapter with it.
"""

import os
from functools import wraps
from importlib.metadata import entry_points
from typing import Any

from app.engines.token_text import ends_within_character, stream_behind
from app.engines.video_colours import complete_torchvision

GRAMMAR = "xylem_grammar"  # in SamplingParams.extra_args: how many of the prompt's last tokens belong to the answer
_GROUP, _NAME = "vllm.general_plugins", "xylem"  # as in pyproject.toml


def register() -> None:
    """Called by vLLM in each of its processes, perhaps several times."""
    from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer
    from vllm.v1.structured_output import StructuredOutputManager

    if getattr(StructuredOutputManager._create_grammar, "__wrapped__", None) is None:  # noqa: SLF001 (there is no hook)
        StructuredOutputManager._create_grammar = _behind(StructuredOutputManager._create_grammar)  # noqa: SLF001 (there is no hook)
    if getattr(FastIncrementalDetokenizer.__init__, "__wrapped__", None) is None:
        FastIncrementalDetokenizer.__init__ = _behind_characters(FastIncrementalDetokenizer.__init__)
    complete_torchvision()


def is_loaded() -> bool:
    """Whether vLLM's processes call `register`."""
    plugins = os.environ.get("VLLM_PLUGINS")
    return bool(entry_points(group=_GROUP, name=_NAME)) and (plugins is None or _NAME in plugins.split(","))


def _behind_characters(init: Any) -> Any:
    @wraps(init)
    def behind(self: Any, tokenizer: Any, request: Any) -> None:
        init(self, tokenizer, request)
        prompt = request.prompt_token_ids
        if prompt and ends_within_character(self.tokenizer, prompt):
            self.stream = stream_behind(self.tokenizer, prompt, special=not self.skip_special_tokens)

    return behind


def _behind(create: Any) -> Any:
    @wraps(create)
    def behind(self: Any, request: Any) -> Any:
        """Raises: ValueError, which ends this request only."""
        grammar = create(self, request)
        token_count = (request.sampling_params.extra_args or {}).get(GRAMMAR, 0)
        if token_count and not grammar.accept_tokens(request.request_id, list(request.prompt_token_ids[-token_count:])):
            raise ValueError("The answer so far does not fit its grammar.")
        return grammar

    return behind
