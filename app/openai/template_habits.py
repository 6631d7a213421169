"""Tries out what a chat template takes, and how it takes it, since templates only fail when they are used.

The trials are rendered once for a template: most only for conversations that have, or lack, what they are about.
A request's own template takes texts, for all that is tried of lists: each trial would be a turn of a process.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, reduce
from hashlib import blake2b
from itertools import combinations
from typing import Any

from app import json_bytes
from app.errors import RequestError
from app.tokenizing.own_template import OwnTemplate
from app.tokenizing.tokenizer import SPECIAL, Tokenizer

Shown = dict[str, Any]  # a message, as templates take it

IN_CONTENT = "content"  # instead of a name: reasoning is a part of it
THOUGHTS = ("reasoning_content", "thinking", "reasoning", "thought")  # names that templates have for reasoning
# Variables of templates that no client sets by name.
OURS = {"add_generation_prompt", "chat_template", "continue_final_message", "messages", "tools", *SPECIAL}
_SHORT_ID = re.compile("[a-zA-Z0-9]{9}")
_ABOUT_NONE = re.compile(r"is\s+(not\s+)?none")
_WRITTEN_OUT = re.compile("""["']type["']: ?["'](text|thinking)""")
_THOUGHT = "trial-of-a-thought"
_ASKED = {"role": "user", "content": "?"}
_ID = "trial0000"  # as Mistral's templates want them: nine characters
_RESULT = {"role": "tool", "content": "1", "tool_call_id": _ID, "name": "trial"}


def rendered(tokenizer: Tokenizer, chat: Sequence[Shown], variables: dict[str, Any]) -> str:
    """The prompt. What a template refuses for the form of earlier calls has another form, if it takes that.

    Raises: RequestError.
    """
    try:
        return tokenizer.render_chat([*chat], **variables)
    except RequestError as exc:
        refusal = exc
    if any(message.get("tool_calls") for message in chat):
        for messages in _other_forms(chat, refusal):
            try:
                return tokenizer.render_chat(messages, **variables)
            except RequestError:
                continue
    raise refusal


def _other_forms(chat: Sequence[Shown], error: RequestError) -> Iterator[list[Shown]]:
    """Other forms of the messages. Those with less changed come first."""
    if isinstance(error.__cause__, TypeError):  # DeepSeek's own templates add arguments to a text
        yield _with_arguments(chat, lambda value: value if isinstance(value, str) else json_bytes.dumps(value).decode())
    changes = [change for change, applies in _CHANGES if any(map(applies, chat))]
    for several in range(1, len(changes) + 1):
        for subset in combinations(changes, several):
            yield reduce(lambda messages, change: change(messages), subset, [*chat])


def _without_broken_arguments(chat: Sequence[Shown]) -> list[Shown]:
    """A model wrote them, and no later turn would be possible."""
    return _with_arguments(chat, lambda value: {} if isinstance(value, str) else value)


def _without_thoughts(chat: Sequence[Shown]) -> list[Shown]:
    """gpt-oss: not beside content."""
    return [{name: value for name, value in message.items() if name not in THOUGHTS} for message in chat]


def _calls(message: Shown) -> Sequence[Any]:
    return message.get("tool_calls") or ()


def _with_arguments(messages: Sequence[Shown], form: Callable[[Any], Any]) -> list[Shown]:
    def formed(call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        return call | {"function": function | {"arguments": form(function["arguments"])}}

    return [
        message | {"tool_calls": [formed(call) for call in calls]} if (calls := _calls(message)) else message
        for message in messages
    ]


def _with_short_ids(message: Shown) -> Shown:
    """The message with ids as Mistral's templates want them; the same for a call and its result."""
    if calls := _calls(message):
        return message | {"tool_calls": [call | {"id": _short(call["id"])} for call in calls]}
    return message | {"tool_call_id": _short(message["tool_call_id"])} if "tool_call_id" in message else message


_CHANGES: Sequence[tuple[Callable[[Sequence[Shown]], list[Shown]], Callable[[Shown], bool]]] = (
    (
        _without_broken_arguments,
        lambda message: any(isinstance(c["function"]["arguments"], str) for c in _calls(message)),
    ),
    (
        lambda chat: [_with_short_ids(message) for message in chat],
        lambda message: any(_SHORT_ID.fullmatch(c["id"]) is None for c in _calls(message)),
    ),
    (_without_thoughts, lambda message: any(name in message for name in THOUGHTS)),
)


def _short(text: str) -> str:
    if _SHORT_ID.fullmatch(text):
        return text
    return blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()[:9]


@lru_cache
def thought_name(tokenizer: Tokenizer) -> str:
    """The name under which the reasoning before a call is shown, if only with a variable that a request may set.

    Or `content`, as in Mistral's own templates.
    """
    tries = {name: {name: _THOUGHT} for name in THOUGHTS} | {IN_CONTENT: {IN_CONTENT: [thought_part(_THOUGHT)]}}
    switches = {} if isinstance(tokenizer.compiled, OwnTemplate) else dict.fromkeys(settable(tokenizer), True)
    for variables in ({}, switches) if switches else ({},):
        for name, fields in tries.items():
            text = _tried(tokenizer, [_ASKED, _call("") | fields, _RESULT], **variables) or ""
            if _THOUGHT in text and _WRITTEN_OUT.search(text) is None:
                return name
    return THOUGHTS[0]


def settable(tokenizer: Tokenizer) -> list[str]:
    """The template's variables, as clients may set them."""
    return sorted(tokenizer.template_variables - OURS)


@lru_cache
def tells_calls_by_null(tokenizer: Tokenizer) -> bool:
    """Whether a message that only calls tools is shown with None as its content; else with an empty text."""
    if _ABOUT_NONE.search(tokenizer.template or "") is None:
        return False
    null, empty = (_tried(tokenizer, [_ASKED, _call(content), _RESULT]) for content in (None, ""))
    if null is None or empty is None:
        return empty is None
    return null.count("None") <= empty.count("None")  # else it is written out


@lru_cache
def takes_parts(tokenizer: Tokenizer, role: str) -> bool:
    """Whether such a message's texts are shown one after the other where they are a list; else as one text."""
    if isinstance(tokenizer.compiled, OwnTemplate):
        return False
    text = _told(tokenizer, role, [_part(_THOUGHT), _part(f"? {_THOUGHT}")])
    return text.count(_THOUGHT) == 2 and _WRITTEN_OUT.search(text) is None


@lru_cache
def wants_parts(tokenizer: Tokenizer, role: str) -> bool:
    """Whether such a message's text is shown only where it is in a list."""
    if isinstance(tokenizer.compiled, OwnTemplate) or _THOUGHT in _told(tokenizer, role, _THOUGHT):
        return False
    text = _told(tokenizer, role, [_part(_THOUGHT)], lists=True)
    return _THOUGHT in text and _WRITTEN_OUT.search(text) is None


def _told(tokenizer: Tokenizer, role: str, content: Any, *, lists: bool = False) -> str:
    """The prompt that shows such a message; nothing if it is refused. `lists`: the other contents are lists, too."""
    trial = (_RESULT if role == "tool" else {"role": role}) | {"content": content}
    before = {"tool": [_ASKED, _call("")], "assistant": [_ASKED]}.get(role, [])
    messages = [*before, trial, *([] if role in ("user", "tool") else [_ASKED])]
    if lists:
        messages = [message | {"content": as_parts(message["content"])} for message in messages]
    return _tried(tokenizer, messages) or ""


@lru_cache
def needs_descriptions(tokenizer: Tokenizer) -> bool:
    """Whether each tool is shown with a description, if only an empty one."""
    name = tokenizer.tools_variable or "tools"
    bare, with_description = (
        _tried(tokenizer, [_ASKED], **{name: [_tool(**more)]}) for more in ({}, {"description": ""})
    )
    return bare is None and with_description is not None


def as_parts(content: Any) -> Any:
    """A text, or none, as a list of one."""
    return content if isinstance(content, list) else [_part(content or "")]


def thought_part(text: str) -> dict[str, str]:
    return {"type": "thinking", "thinking": text}


def _part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _tried(tokenizer: Tokenizer, messages: list[dict[str, Any]], **variables: Any) -> str | None:
    try:
        return rendered(tokenizer, messages, variables)
    except RequestError:
        return None


def _call(content: str | None) -> dict[str, Any]:
    call = {"id": _ID, "type": "function", "function": {"name": "trial", "arguments": {"a": "b"}}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def _tool(**more: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"a": {"type": "string", "description": "b"}}, "required": ["a"]}
    return {"type": "function", "function": {"name": "trial", **more, "parameters": parameters}}
