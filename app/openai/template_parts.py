"""Messages with pictures as chat templates take them: lists of parts, or texts with the model's marker."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from app.errors import RequestError
from app.openai.content_parts import AnyText, MediaPart
from app.openai.conversation import Message
from app.tokenizer import Tokenizer

_MARK = "<<<text>>>"


class _Takes(NamedTuple):
    texts: bool
    parts: bool


def show_parts(shown: list[dict[str, Any]], messages: Sequence[Message], tokenizer: Tokenizer, marker: str) -> None:
    """Changes what `conversation.for_template` has made of the messages, for a model that takes pictures."""
    takes = _takes(tokenizer, marker)
    for made, message in zip(shown, messages, strict=True):
        if message.media:
            made["content"] = _parts(message) if takes.parts else _text(message, marker)
        elif not takes.texts and takes.parts and isinstance(made["content"], str):
            made["content"] = [{"type": "text", "text": made["content"]}] if made["content"] else []


def _parts(message: Message) -> list[dict[str, Any]]:
    return [
        {"type": "text", "text": part.text} if isinstance(part, AnyText) else {"type": "image"} for part in _of(message)
    ]


def _text(message: Message, marker: str) -> str:
    """A marker is not a line of its own."""
    out = ""
    before = False  # the last part was a text
    for part in _of(message):
        is_text = isinstance(part, AnyText)
        out += ("\n" if before and is_text else "") + (part.text if isinstance(part, AnyText) else marker)
        before = is_text
    return out


def _of(message: Message) -> Sequence[AnyText | MediaPart]:
    return [] if message.content is None or isinstance(message.content, str) else message.content


@lru_cache
def _takes(tokenizer: Tokenizer, marker: str) -> _Takes:
    """Templates of models that see take texts, lists of parts, or both; what they don't take, they leave out."""

    def rendered(content: Any) -> str:
        try:
            return tokenizer.render_chat([{"role": "user", "content": content}])
        except RequestError:
            return ""

    parts = rendered([{"type": "image"}, {"type": "text", "text": _MARK}])
    return _Takes(_MARK in rendered(_MARK), _MARK in parts and marker in parts)
