"""A span as we have it, until it is exported."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

Attribute = str | bool | int | float | Sequence[str]


class SpanEvent(Struct, frozen=True):
    name: str
    at: float  # seconds since the epoch, by Redis' clock
    attributes: Mapping[str, Attribute] = {}


class Span(Struct, frozen=True):
    name: str
    id: str  # 16 hexadecimal digits, as `parent`
    parent: str  # "": it begins its trace
    start: float  # seconds since the epoch, by Redis' clock
    end: float
    attributes: Mapping[str, Attribute] = {}
    events: Sequence[SpanEvent] = ()
    error: str = ""  # the code of an error: texts may hold a prompt
    serves: bool = False  # it is the work for a request of another program
