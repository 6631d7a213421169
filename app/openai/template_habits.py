"""What a chat template makes of values that are missing. It is tried out, since templates only fail when they are used.

The trials are rendered once for a template, and only for conversations that lack such a value.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from app import json_bytes
from app.errors import RequestError
from app.tokenizer import Tokenizer

_ASKED = {"role": "user", "content": "?"}
_ID = "trial0000"  # as Mistral's templates want them: nine characters
_RESULT = {"role": "tool", "content": "1", "tool_call_id": _ID, "name": "trial"}


def rendered(tokenizer: Tokenizer, shown: Sequence[dict[str, Any]], variables: dict[str, Any]) -> str:
    """Hugging Face's templates take the arguments of calls as objects; DeepSeek's own ones need text.

    Raises: RequestError.
    """
    messages = [*shown]
    try:
        return tokenizer.render_chat(messages, **variables)
    except RequestError as exc:
        calls = [call["function"] for message in messages for call in message.get("tool_calls", [])]
        if not calls or not isinstance(exc.__cause__, TypeError):
            raise
    for call in calls:
        if not isinstance(call["arguments"], str):
            call["arguments"] = json_bytes.dumps(call["arguments"]).decode()
    return tokenizer.render_chat(messages, **variables)


@lru_cache
def tells_calls_by_null(tokenizer: Tokenizer) -> bool:
    """Whether a message that only calls tools is shown with None as its content; else with an empty text."""
    if "is none" not in (tokenizer.template or ""):
        return False
    null, empty = (_tried(tokenizer, [_ASKED, _call(content), _RESULT]) for content in (None, ""))
    if null is None or empty is None:
        return empty is None
    return null.count("None") <= empty.count("None")  # else it is written out


@lru_cache
def needs_descriptions(tokenizer: Tokenizer) -> bool:
    """Whether each tool is shown with a description, if only an empty one."""
    bare, described = (_tried(tokenizer, [_ASKED], tools=[_tool(**more)]) for more in ({}, {"description": ""}))
    return bare is None and described is not None


def _tried(tokenizer: Tokenizer, messages: list[dict[str, Any]], **variables: Any) -> str | None:
    try:
        return rendered(tokenizer, messages, variables)
    except RequestError:
        return None


def _call(content: str | None) -> dict[str, Any]:
    called = {"id": _ID, "type": "function", "function": {"name": "trial", "arguments": {"a": "b"}}}
    return {"role": "assistant", "content": content, "tool_calls": [called]}


def _tool(**more: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"a": {"type": "string", "description": "b"}}, "required": ["a"]}
    return {"type": "function", "function": {"name": "trial", **more, "parameters": parameters}}
