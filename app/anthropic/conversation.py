"""Turns as the messages of a chat."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

from pydantic_core import to_json

from app.anthropic.content import (
    ImageBlock,
    RedactedThinking,
    TextBlock,
    ThinkingBlock,
    ToolReference,
    ToolResult,
    ToolUse,
    Turn,
)
from app.errors import RequestError
from app.openai.content_parts import AnyText, MediaPart, PlainText, joined
from app.openai.conversation import AssistantMessage, Message, PromptMessage, ToolCall, ToolMessage
from app.tokenizing.tokenizer import Tokenizer

# Claude Code's first block of `system`: it differs in each request, so that no prefix would be found in the cache.
_BILLING = "x-anthropic-billing-header"
_MARK = "<<<system>>>"


def messages_of(system: Sequence[TextBlock] | str | None, turns: Sequence[Turn]) -> list[Message]:
    """The messages of checked turns. Consecutive turns of one role are one message, as at Anthropic.

    It may be longer than a chat's message.
    """
    messages: list[Message] = []
    if system is not None:
        blocks = [] if isinstance(system, str) else [b for b in system if not b.text.startswith(_BILLING)]
        messages += _prompt("system", system if isinstance(system, str) else _parts(blocks))
    for role, run in groupby(turns, lambda turn: turn.role):
        together = [block for turn in run for block in turn.blocks]
        if role == "assistant":
            messages.append(_assistant(together))
        elif role == "system":
            messages += _prompt("system", _parts(together))
        else:
            messages += _user(together)
    return messages


def _prompt(role: Any, content: Any) -> list[Message]:
    return [PromptMessage.model_construct(role=role, content=content)] if content else []


def _parts(blocks: Sequence[TextBlock | ImageBlock | ToolReference]) -> list[Any]:
    return [block.as_openais() if isinstance(block, ImageBlock) else _text(block) for block in blocks]


def _text(block: TextBlock | ToolReference) -> AnyText:
    text = block.tool_name if isinstance(block, ToolReference) else block.text
    return PlainText.model_construct(type="text", text=text)


def _user(blocks: Sequence[TextBlock | ImageBlock | ToolResult]) -> list[Message]:
    messages: list[Message] = []
    for is_result, run in groupby(blocks, lambda block: isinstance(block, ToolResult)):
        if is_result:
            messages += [_result(block) for block in run if isinstance(block, ToolResult)]
        else:
            messages += _prompt("user", _parts([block for block in run if not isinstance(block, ToolResult)]))
    return messages


def _result(block: ToolResult) -> Message:
    content = block.content or ""
    result_content: Any = content if isinstance(content, str) else _parts(content)
    return ToolMessage.model_construct(role="tool", tool_call_id=block.tool_use_id, content=result_content)


def _assistant(blocks: Sequence[TextBlock | ThinkingBlock | RedactedThinking | ToolUse]) -> Message:
    """The assistant's message, without redacted thinking, which can't be read here."""
    texts = _parts([block for block in blocks if isinstance(block, TextBlock)])
    thoughts = "".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock))
    calls = [_call(block) for block in blocks if isinstance(block, ToolUse)]
    return AssistantMessage.model_construct(
        role="assistant", content=texts or None, reasoning_content=thoughts or None, tool_calls=calls or None
    )


def _call(block: ToolUse) -> ToolCall:
    function = ToolCall.Called.model_construct(name=block.name, arguments=to_json(block.input).decode())
    return ToolCall.model_construct(id=block.id, type="function", function=function)


def fit_template(messages: Sequence[Message], tokenizer: Tokenizer) -> Sequence[Message]:
    """Later system messages become part of the user's if the template does not show them."""
    late = [message for message in messages[1:] if message.role == "system"]
    return _within_users(messages) if late and not _shows_late_system(tokenizer) else messages


def _within_users(messages: Sequence[Message]) -> list[Message]:
    merged_messages: list[Message] = []
    for i, message in enumerate(messages):
        role = "user" if message.role == "system" and i > 0 else message.role
        if (
            role == "user" and merged_messages and merged_messages[-1].role == "user"
        ):  # templates want users and assistants in turn
            parts = _listed(merged_messages.pop()) + _listed(message)
            pictures = any(isinstance(part, MediaPart) for part in parts)
            content: Any = parts if pictures else joined(parts)
            merged_messages.append(PromptMessage.model_construct(role="user", content=content))
        elif role != message.role:
            merged_messages.append(PromptMessage(role="user", content=message.text))
        else:
            merged_messages.append(message)
    return merged_messages


def _listed(message: Message) -> list[Any]:
    content = message.content
    return [*content] if isinstance(content, list) else [PlainText.model_construct(type="text", text=message.text)]


@lru_cache
def _shows_late_system(tokenizer: Tokenizer) -> bool:
    turns = (("user", "?"), ("assistant", "!"), ("user", "?"), ("system", _MARK))
    try:
        return _MARK in tokenizer.render_chat([{"role": role, "content": text} for role, text in turns])
    except RequestError:
        return False
