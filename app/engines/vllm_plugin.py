"""A plugin of vLLM's, loaded in its engine core: the grammar of an answer that began elsewhere goes on in its middle.

vLLM begins a grammar at the end of the prompt. Of an answer that is taken over, the prompt ends with what is out. This
is no part of the adapter, which every process of vLLM would import with it.
"""

import os
from functools import wraps
from importlib.metadata import entry_points
from typing import Any

GRAMMAR = "xylem_grammar"  # in SamplingParams.extra_args: so many of the prompt's last tokens are of the answer
_GROUP, _NAME = "vllm.general_plugins", "xylem"  # as in pyproject.toml


def register() -> None:
    """vLLM calls it in each of its processes, perhaps several times."""
    from vllm.v1.structured_output import StructuredOutputManager

    if getattr(StructuredOutputManager._create_grammar, "__wrapped__", None) is None:  # noqa: SLF001 (there is no hook)
        StructuredOutputManager._create_grammar = _behind(StructuredOutputManager._create_grammar)  # noqa: SLF001


def is_loaded() -> bool:
    """Whether vLLM's processes call `register`."""
    chosen = os.environ.get("VLLM_PLUGINS")
    return bool(entry_points(group=_GROUP, name=_NAME)) and (chosen is None or _NAME in chosen.split(","))


def _behind(create: Any) -> Any:
    @wraps(create)
    def behind(self: Any, request: Any) -> Any:
        """Raises: ValueError, which ends this request only."""
        grammar = create(self, request)
        begun = (request.sampling_params.extra_args or {}).get(GRAMMAR, 0)
        if begun and not grammar.accept_tokens(request.request_id, list(request.prompt_token_ids[-begun:])):
            raise ValueError("What is out of the answer does not fit its grammar.")
        return grammar

    return behind
