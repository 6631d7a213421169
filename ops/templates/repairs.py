"""The changes that the API may make to a conversation so that a template takes it, or shows all of it: each by its
name.

They are written apart from the API's own code: with them transformers renders what the API should.
"""

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, NamedTuple


class Shown(NamedTuple):
    """The input of a template."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    variables: dict[str, Any]


def as_sent(body: Mapping[str, Any]) -> Shown:
    """The conversation as clients mean it: arguments as objects, `developer` as `system`, an effort as what turns
    reasoning on or off.

    Results have the names of what was called. Tools have parameters, even if only none.
    """
    messages, tools = deepcopy(body["messages"]), deepcopy(body.get("tools"))
    names = {call["id"]: call["function"]["name"] for message in messages for call in message.get("tool_calls", ())}
    for tool in tools or ():
        tool["function"].setdefault("parameters", {"type": "object", "properties": {}})
    for message in messages:
        if "tool_call_id" in message:
            message["name"] = names[message["tool_call_id"]]
        message["role"] = "system" if message["role"] == "developer" else message["role"]
        for function in _called(message):
            try:
                function["arguments"] = json.loads(function["arguments"] or "{}")
            except ValueError:
                continue
    variables = body.get("chat_template_kwargs", {}) | with_effort(body.get("reasoning_effort"))
    return Shown(messages, tools, variables)


def with_effort(word: str | None) -> dict[str, Any]:
    if word is None:
        return {}
    switches = dict.fromkeys(("enable_thinking", "thinking"), word != "none")
    return switches | {"reasoning_effort": word, "thinking_effort": word, f"{word}_effort": True}


def _called(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [call["function"] for call in message.get("tool_calls", ())]


def _empty_content(shown: Shown) -> None:
    for message in shown.messages:
        if message["content"] is None:
            message["content"] = ""


def _no_arguments(shown: Shown) -> None:
    for message in shown.messages:
        for function in _called(message):
            if isinstance(function["arguments"], str):
                function["arguments"] = {}


def _arguments_as_text(shown: Shown) -> None:
    for message in shown.messages:
        for function in _called(message):
            if not isinstance(function["arguments"], str):
                function["arguments"] = json.dumps(function["arguments"], separators=(",", ":"), ensure_ascii=False)


def _short_ids(shown: Shown) -> None:
    """Other ones than the API's; `check.py` compares which are the same."""
    ids = [call["id"] for message in shown.messages for call in message.get("tool_calls", ())]
    short = {name: f"{i:09x}" for i, name in enumerate(ids) if len(name) != 9}
    for message in shown.messages:
        for call in message.get("tool_calls", ()):
            call["id"] = short.get(call["id"], call["id"])
        if "tool_call_id" in message:
            message["tool_call_id"] = short.get(message["tool_call_id"], message["tool_call_id"])


def _thought(name: str) -> Callable[[Shown], None]:
    def change(shown: Shown) -> None:
        for message in shown.messages:
            if "reasoning_content" in message:
                message[name] = message.pop("reasoning_content")

    return change


def _thought_part(shown: Shown) -> None:
    for message in shown.messages:
        if "reasoning_content" in message:
            content = message["content"] or []
            texts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            message["content"] = [{"type": "thinking", "thinking": message.pop("reasoning_content")}, *texts]


def _no_thought(shown: Shown) -> None:
    for message in shown.messages:
        message.pop("reasoning_content", None)


def _descriptions(shown: Shown) -> None:
    for tool in shown.tools or ():
        function = tool["function"]
        tool["function"] = {"name": function["name"], "description": "", **function}


def _lines(*roles: str) -> Callable[[Shown], None]:
    def change(shown: Shown) -> None:
        for message in shown.messages:
            if isinstance(message["content"], list) and message["role"] in roles:
                message["content"] = "\n".join(part["text"] for part in message["content"])

    return change


def _lists(shown: Shown) -> None:
    for message in shown.messages:
        if isinstance(message["content"], str):
            message["content"] = [{"type": "text", "text": message["content"]}]


# At most one of each group is used at a time, and as few as do.
REPAIRS: tuple[Mapping[str, Callable[[Shown], None]], ...] = (
    {"tools have descriptions": _descriptions},
    {"no content is an empty text": _empty_content},
    {"arguments that are no JSON are none": _no_arguments, "arguments are a text": _arguments_as_text},
    {"ids have nine characters": _short_ids},
    {f"reasoning is `{name}`": _thought(name) for name in ("thinking", "reasoning", "thought")}
    | {"reasoning is a part of the content": _thought_part, "reasoning is left out": _no_thought},
    {"texts are lines of the system's": _lines("system")},
    {"texts are lines of the user's": _lines("user")},
    {"texts are lines of the assistant's": _lines("assistant")},
    {"texts are lines of results": _lines("tool")},
    {"a text is a list": _lists},
)
