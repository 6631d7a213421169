"""A plugin of SGLang's, loaded in its scheduler: the grammar of an answer that began elsewhere goes on in its middle.

`sglang_cache_groups.py` is part of it.

SGLang begins a grammar at the end of the prompt. Of an answer that is taken over, the prompt ends with what is out.
This is no part of the adapter, which every process of SGLang would import with it.
"""

import os
from importlib.metadata import entry_points
from typing import Any

from app.engines import sglang_cache_groups

GRAMMAR = "xylem_grammar"  # in a request's custom_params: so many of the prompt's last tokens are of the answer
_GROUP, _NAME = "sglang.srt.plugins", "xylem"  # as in pyproject.toml
_MANAGER = "sglang.srt.constrained.grammar_manager.GrammarManager"
_FAILED = 500


def register() -> None:
    """SGLang calls it in each of its processes."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    # A grammar is there at once if it was compiled before, and else when the request leaves the queue of those to come.
    HookRegistry.register(f"{_MANAGER}.process_req_with_grammar", _found, HookType.AFTER)
    HookRegistry.register(f"{_MANAGER}.get_ready_grammar_requests", _compiled, HookType.AFTER)
    sglang_cache_groups.register()


def is_loaded() -> bool:
    """Whether SGLang's processes call `register`."""
    plugins = os.environ.get("SGLANG_PLUGINS")
    return bool(entry_points(group=_GROUP, name=_NAME)) and (not plugins or _NAME in plugins.split(","))


def _found(waits: bool, _manager: Any, req: Any) -> None:
    if not waits:
        _go_on(req)


def _compiled(ready: list[Any], _manager: Any) -> None:
    for req in ready:
        _go_on(req)


def _go_on(req: Any) -> None:
    """Take a new grammar through what is out. What does not fit ends this request only."""
    token_count = (req.sampling_params.custom_params or {}).get(GRAMMAR, 0)
    if not token_count or req.grammar is None or req.finished() or req.to_finish is not None:
        return
    try:
        for token in req.origin_input_ids[-token_count:]:
            req.grammar.accept_token(token)
    except ValueError:
        req.set_finish_with_abort("What is out of the answer does not fit its grammar.", _FAILED, "InternalServerError")
