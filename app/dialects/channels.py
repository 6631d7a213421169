"""Messages on channels, as gpt-oss writes them: a head with the channel and the recipient, then a body."""

import re
from collections.abc import Callable

from app.dialects.dialect import Tools
from app.dialects.json_value import read_arguments
from app.dialects.parts import Call, Collector, Content, Kind, Reasoning
from app.dialects.reader import HEAD, EndOfText, Mismatch, Reader, Reading, marker_set

_START, _MESSAGE = "<|start|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_BODY, _HEAD = marker_set(*_ENDS), marker_set(_MESSAGE, _START, *_ENDS)
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)").findall
_RECIPIENT = re.compile(r"\bto=([^\s<]+)").findall
# Possessive: a model may write anything, and each of it is to be looked at once.
_IS_HEAD = re.compile(
    r"(?:<\|\w*+\|?+>?+|\s++|to=[^\s<]*+|assistant|analysis|commentary|final|json)*+\w{0,10}"
).fullmatch
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
        out.close(Content)


def _read_message(reader: Reader, out: Collector, tools: Tools) -> Reading[None]:
    read: list[str] = []
    reader.keep()
    try:
        mark = yield from reader.pieces(_HEAD, read.append)
    except EndOfText:
        _leave(reader, out, "".join(read))
        raise
    head = "".join(read)
    if mark != _MESSAGE or len(head) > HEAD:  # it was no head, and the next one follows
        _leave(reader, out, head)
        return
    reader.release()
    channels, recipients = _CHANNEL(head), [r for r in _RECIPIENT(head) if r not in _NO_TOOLS]
    if recipients:
        name = recipients[-1].removeprefix("functions.")
        each: Callable[[str], object] = out.leave
        if tools and (name != recipients[-1] or name in tools):
            each = yield from _read_call(reader, out, out.call(name))
    else:
        kind = _KINDS.get(channels[-1] if channels else "final")
        each = (lambda text: out.text(kind, text)) if kind else out.leave
        if kind:
            out.switch(kind)
    while True:
        reader.keep((yield from reader.pieces(_BODY, each)))
        over = yield from reader.follows((_START,))
        mark = reader.kept()
        reader.release()
        if over:
            return
        each(mark)


def _leave(reader: Reader, out: Collector, text: str) -> None:
    """Text that has no message behind it, and is more than a head."""
    reader.kept()
    reader.release()
    if not _IS_HEAD(text):
        out.leave(text)


def _read_call(reader: Reader, out: Collector, call: Call) -> Reading[Callable[[str], object]]:
    """Reads a call's arguments, and returns what is to be done with the rest of its body."""
    if (yield from reader.skip_space()) in '{"':
        try:
            if (yield from read_arguments(reader, call.add)):
                call.finish()
        except Mismatch:
            pass
        return out.leave
    if end := (yield from reader.literal(*_ENDS)):
        reader.unread(end)
        call.finish()
    return call.add  # what is no JSON is shown as it is
