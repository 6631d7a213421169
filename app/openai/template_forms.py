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
from app.tokenizer import Tokenizer


def fitted(tokenizer: Tokenizer, messages: Sequence[Message]) -> list[dict[str, Any]]:
    nulls = any(only_calls(message) for message in messages) and tells_calls_by_null(tokenizer)
    thought = thought_name(tokenizer) if any(thinks(message) for message in messages) else THOUGHTS[0]
    shown = for_template(messages, nulls=nulls, thought=THOUGHTS[0] if thought == IN_CONTENT else thought)
    for made, message in zip(shown, messages, strict=True):
        if (texts := listed_texts(message)) and takes_parts(tokenizer, made["role"]):
            made["content"] = texts
        if wants_parts(tokenizer, made["role"]):
            made["content"] = as_parts(made["content"])
        if thought == IN_CONTENT and (said := made.pop(THOUGHTS[0], None)) is not None:
            made["content"] = [thought_part(said), *(as_parts(made["content"]) if made["content"] else [])]
    return shown
