"""Messages with media as chat templates take them: lists of parts, or texts with the model's markers."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from app.dispatch.media.media_reader import Samples, samples_of
from app.errors import RequestError
from app.media.placeholders.smolvlm_video import CLOSING, before_frames
from app.messages.media import MediaKind
from app.openai.content_parts import AnyText, MediaPart
from app.openai.conversation import Message
from app.tokenizing.tokenizer import Tokenizer

_MARK = "<<<text>>>"


class Marker(NamedTuple):
    text: str  # of one medium, for templates that take texts
    sign: str  # what is in any template's text for one


class _Takes(NamedTuple):
    texts: bool
    parts: bool


def show_parts(
    chat: list[dict[str, Any]],
    messages: Sequence[Message],
    tokenizer: Tokenizer,
    markers: Mapping[MediaKind, Marker],
    samples: Samples,
) -> None:
    """Changes what `conversation.for_template` has made of the messages, for a model that takes media.

    `markers`: of the kinds that it takes. `samples`: of a video, they say whether it is shown as one or as its frames.
    """
    takes = _takes(tokenizer, tuple(markers.items()))
    for entry, message in zip(chat, messages, strict=True):
        if message.media:
            entry["content"] = _parts(message, samples) if takes.parts else _text(message, markers, samples)
        elif not takes.texts and takes.parts and isinstance(entry["content"], str):
            entry["content"] = [{"type": "text", "text": entry["content"]}] if entry["content"] else []


def _parts(message: Message, samples: Samples) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for part in _of(message):
        parts += [{"type": "text", "text": part.text}] if isinstance(part, AnyText) else _media(part, samples)
    return parts


def _media(part: MediaPart, samples: Samples) -> list[dict[str, Any]]:
    """A picture, a sound or a video; or the frames of one, with their texts."""
    if part.origin.kind == "audio":
        return [{"type": "audio"}]
    medium_samples = samples_of(part.origin, samples) if samples else []
    if medium_samples and medium_samples[0].media.kind == "video":
        return [{"type": "video"}]
    frames = [sample.media.frame for sample in medium_samples if sample.media.frame is not None]
    if not frames:
        return [{"type": "image"}]
    parts: list[dict[str, Any]] = []
    for text in before_frames(frames):
        parts += [{"type": "text", "text": text}, {"type": "image"}]
    return [*parts, {"type": "text", "text": CLOSING}]


def _text(message: Message, markers: Mapping[MediaKind, Marker], samples: Samples) -> str:
    """A marker is not a line of its own."""
    out = ""
    before = False  # the last part was a text
    for part in _of(message):
        if isinstance(part, AnyText):
            out += ("\n" if before else "") + part.text
        else:
            out += "".join(one.get("text") or markers[one["type"]].text for one in _media(part, samples))
        before = isinstance(part, AnyText)
    return out


def _of(message: Message) -> Sequence[AnyText | MediaPart]:
    return [] if message.content is None or isinstance(message.content, str) else message.content


@lru_cache
def _takes(tokenizer: Tokenizer, markers: tuple[tuple[MediaKind, Marker], ...]) -> _Takes:
    """Such models' templates take texts, lists of parts, or both; what they don't take, they leave out."""

    def rendered(content: Any) -> str:
        try:
            return tokenizer.render_chat([{"role": "user", "content": content}])
        except RequestError:
            return ""

    parts = rendered([*({"type": kind} for kind, _ in markers), {"type": "text", "text": _MARK}])
    return _Takes(_MARK in rendered(_MARK), _MARK in parts and all(marker.sign in parts for _, marker in markers))
