"""W3C's header `traceparent`: https://www.w3.org/TR/trace-context/."""

import re
from random import getrandbits

from msgspec import Struct

_well_formed = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?").fullmatch
_LENGTH = 55  # of version 00: later ones may have more behind it
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


class Caller(Struct, frozen=True, gc=False):
    """The caller: a span of another program. Ids are hexadecimal."""

    trace: str
    span: str
    sampled: bool


def read(header: bytes) -> Caller | None:
    """None for anything that isn't well-formed: then the trace begins here."""
    if not _well_formed(header):
        return None
    text = header.decode("latin-1")
    version, trace, span = text[:2], text[3:35], text[36:52]
    is_known = version != "ff" and (version != "00" or len(text) == _LENGTH)
    if not is_known or trace == _NO_TRACE or span == _NO_SPAN:
        return None
    return Caller(trace, span, text[54] in "13579bdf")


def new_trace_id() -> str:
    return f"{getrandbits(128) or 1:032x}"


def new_span_id() -> str:
    return f"{getrandbits(64) or 1:016x}"
