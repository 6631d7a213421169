"""A conversation's messages in the forms that a chat template shows."""

from collections.abc import Sequence
from typing import Any

from app.openai.conversation import Message, for_template, listed_texts, only_calls, thinks
from app.openai.template_habits import (
    IN_CONTENT,
    THOUGHTS,
    as_parts,
    takes_parts,
    tells_calls_by_null,
    thought_name,
    thought_part,
    wants_parts,
)
from app.tokenizing.tokenizer import Tokenizer


def fitted(tokenizer: Tokenizer, messages: Sequence[Message]) -> list[dict[str, Any]]:
    nulls, reasoning_key = False, THOUGHTS[0]
    if answers := [message for message in messages if message.role == "assistant"]:
        nulls = any(map(only_calls, answers)) and tells_calls_by_null(tokenizer)
        reasoning_key = thought_name(tokenizer) if any(map(thinks, answers)) else reasoning_key
    entries = for_template(
        messages, nulls=nulls, reasoning=THOUGHTS[0] if reasoning_key == IN_CONTENT else reasoning_key
    )
    for entry, message in zip(entries, messages, strict=True):
        is_list = not isinstance(message.content, str)
        if is_list and (texts := listed_texts(message)) and takes_parts(tokenizer, entry["role"]):
            entry["content"] = texts
        if wants_parts(tokenizer, entry["role"]):
            entry["content"] = as_parts(entry["content"])
        if reasoning_key == IN_CONTENT and (reasoning := entry.pop(THOUGHTS[0], None)) is not None:
            entry["content"] = [thought_part(reasoning), *(as_parts(entry["content"]) if entry["content"] else [])]
    return entries
