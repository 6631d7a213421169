"""Turns as the messages of a chat."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

from pydantic_core import to_json

from app.anthropic.content import RedactedThinking, TextBlock, ThinkingBlock, ToolReference, ToolResult, ToolUse, Turn
from app.errors import RequestError
from app.openai.conversation import AssistantMessage, Message, PromptMessage, TextPart, ToolCall, ToolMessage
from app.tokenizer import Tokenizer

# Claude Code's first block of `system`: it differs in each request, so that no prefix would be found in the cache.
_BILLING = "x-anthropic-billing-header"
_MARK = "<<<system>>>"


def messages_of(system: Sequence[TextBlock] | str | None, turns: Sequence[Turn]) -> list[Message]:
    """The messages of checked turns. Consecutive turns of one role are one message, as at Anthropic.

    It may be longer than a chat's message.
    """
    made: list[Message] = []
    if system is not None:
        blocks = [] if isinstance(system, str) else [b for b in system if not b.text.startswith(_BILLING)]
        made += _prompt("system", system if isinstance(system, str) else _parts(blocks))
    for role, run in groupby(turns, lambda turn: turn.role):
        together = [block for turn in run for block in turn.blocks]
        if role == "assistant":
            made.append(_assistant(together))
        elif role == "system":
            made += _prompt("system", _parts(together))
        else:
            made += _user(together)
    return made


def _prompt(role: Any, content: list[TextPart] | str) -> list[Message]:
    return [PromptMessage.model_construct(role=role, content=content)] if content else []


def _parts(blocks: Sequence[TextBlock | ToolReference]) -> list[TextPart]:
    texts = (block.tool_name if isinstance(block, ToolReference) else block.text for block in blocks)
    return [TextPart.model_construct(type="text", text=text) for text in texts]


def _user(blocks: Sequence[TextBlock | ToolResult]) -> list[Message]:
    made: list[Message] = []
    for is_text, run in groupby(blocks, lambda block: isinstance(block, TextBlock)):
        if is_text:
            made += _prompt("user", _parts([block for block in run if isinstance(block, TextBlock)]))
        else:
            made += [_result(block) for block in run if isinstance(block, ToolResult)]
    return made


def _result(block: ToolResult) -> Message:
    content = block.content or ""
    given = content if isinstance(content, str) else _parts(content)
    return ToolMessage.model_construct(role="tool", tool_call_id=block.tool_use_id, content=given)


def _assistant(blocks: Sequence[TextBlock | ThinkingBlock | RedactedThinking | ToolUse]) -> Message:
    """Without redacted thinking, which can't be read here."""
    texts = _parts([block for block in blocks if isinstance(block, TextBlock)])
    thoughts = "".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock))
    calls = [_call(block) for block in blocks if isinstance(block, ToolUse)]
    return AssistantMessage.model_construct(
        role="assistant", content=texts or None, reasoning_content=thoughts or None, tool_calls=calls or None
    )


def _call(block: ToolUse) -> ToolCall:
    called = ToolCall.Called.model_construct(name=block.name, arguments=to_json(block.input).decode())
    return ToolCall.model_construct(id=block.id, type="function", function=called)


def fit_template(messages: Sequence[Message], tokenizer: Tokenizer) -> Sequence[Message]:
    """Later system messages become part of the user's if the template does not show them."""
    late = [message for message in messages[1:] if message.role == "system"]
    return _within_users(messages) if late and not _shows_late_system(tokenizer) else messages


def _within_users(messages: Sequence[Message]) -> list[Message]:
    made: list[Message] = []
    for i, message in enumerate(messages):
        role = "user" if message.role == "system" and i > 0 else message.role
        if role == "user" and made and made[-1].role == "user":  # templates want users and assistants in turn
            text = f"{made.pop().text}\n{message.text}"
            made.append(PromptMessage(role="user", content=text))
        elif role != message.role:
            made.append(PromptMessage(role="user", content=message.text))
        else:
            made.append(message)
    return made


@lru_cache
def _shows_late_system(tokenizer: Tokenizer) -> bool:
    turns = (("user", "?"), ("assistant", "!"), ("user", "?"), ("system", _MARK))
    try:
        return _MARK in tokenizer.render_chat([{"role": role, "content": text} for role, text in turns])
    except RequestError:
        return False
