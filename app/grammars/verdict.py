"""The verdict on a grammar, from a process that compiles it."""

from msgspec import Struct

from app.messages.job import Grammar
from app.messages.wire import decoder


class Verdict(Struct, frozen=True, array_like=True):
    reason: str = ""  # why it can't be enforced
    instead: Grammar | None = None  # the same for the library, in which strings are JSON's; None: as it is


decode_verdict = decoder(Verdict)
