"""Messages on channels, as gpt-oss writes them: a head with the channel and the recipient, then a body."""

import re
from collections.abc import Callable

from app.dialects.dialect import Tools
from app.dialects.json_value import read_span
from app.dialects.parts import Collector, Content, Kind, Reasoning
from app.dialects.reader import EndOfText, Mismatch, Reader, Reading, marker_set

_START, _MESSAGE = "<|start|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_BODY, _HEAD = marker_set(*_ENDS), marker_set(_MESSAGE, _START, *_ENDS)
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)").findall
_RECIPIENT = re.compile(r"\bto=([^\s<]+)").findall
_KINDS: dict[str, Kind] = {"analysis": Reasoning, "commentary": Content, "final": Content}
_BEGINNINGS = ("<|", "to=")  # of a head
_NO_TOOLS = ("assistant", "user", "all")  # recipients


def read_channels(reader: Reader, out: Collector, tools: Tools) -> Reading[None]:
    """Reads the whole text. The prompt has begun its first head."""
    try:
        if not (yield from reader.follows(_BEGINNINGS)):  # under a grammar, a model may write no head
            yield from reader.pieces(marker_set(), lambda text: out.text(Content, text))
        while True:
            yield from _read_message(reader, out, tools)
    except EndOfText:
        return


def _read_message(reader: Reader, out: Collector, tools: Tools) -> Reading[None]:
    try:
        head, mark = yield from reader.until(_HEAD)
    except Mismatch:  # longer than any head
        return
    if mark != _MESSAGE:  # it was no head, and the next one follows
        return
    channels, recipients = _CHANNEL(head), [r for r in _RECIPIENT(head) if r not in _NO_TOOLS]
    if recipients:
        name = recipients[-1].removeprefix("functions.")
        if tools and (name != recipients[-1] or name in tools):
            yield from _read_call(reader, out, name)
        each: Callable[[str], object] = _ignore
    else:
        kind = _KINDS.get(channels[-1] if channels else "final")
        each = (lambda text: out.text(kind, text)) if kind else _ignore
    while True:
        mark = yield from reader.pieces(_BODY, each)
        if (yield from reader.follows((_START,))):
            return
        each(mark)


def _read_call(reader: Reader, out: Collector, name: str) -> Reading[None]:
    if (yield from reader.skip_space()) == "{":
        call = out.call(name)
        yield from read_span(reader, call.add)


def _ignore(_: str) -> None:
    pass
