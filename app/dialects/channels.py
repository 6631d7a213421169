"""Messages on channels, as gpt-oss writes them: a head with channel and recipient, then a body."""

import re
from collections.abc import Callable

from app.dialects.dialect import Tools
from app.dialects.json_value import read_span
from app.dialects.parts import Collector, Content, Kind, Reasoning
from app.dialects.reader import Cut, Reader, Reading, Unfit, stops

_START, _MESSAGE = "<|start|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_BODY, _HEAD = stops(*_ENDS), stops(_MESSAGE, _START, *_ENDS)
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)").findall
_RECIPIENT = re.compile(r"\bto=([^\s<]+)").findall
_KINDS: dict[str, Kind] = {"analysis": Reasoning, "commentary": Content, "final": Content}
_BEGINNINGS = ("<|", "to=")  # of a head
_NOBODY = ("assistant", "user", "all")


def read_channels(reader: Reader, out: Collector, tools: Tools) -> Reading[None]:
    """All of a text, whose first head the prompt began."""
    try:
        if not (yield from reader.follows(_BEGINNINGS)):  # a model that is held to a grammar writes no head
            yield from reader.pieces(stops(), lambda text: out.text(Content, text))
        while True:
            yield from _read_message(reader, out, tools)
    except Cut:
        return


def _read_message(reader: Reader, out: Collector, tools: Tools) -> Reading[None]:
    try:
        head, mark = yield from reader.until(_HEAD)
    except Unfit:  # longer than any head
        return
    if mark != _MESSAGE:  # what was no head is followed by the next one
        return
    channels, recipients = _CHANNEL(head), [r for r in _RECIPIENT(head) if r not in _NOBODY]
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
