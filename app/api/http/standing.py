"""Ends connections whose clients stand still within a request: amid its headers, or amid its body.

One look at all connections every few seconds, so that a request costs nothing for it.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, Protocol

from app.settings import Settings

EVERY_S = 2.0  # between two looks
_LEAST_PER_S = 1024  # bytes of a body

Awaited = tuple[int, Literal["head", "body"]]  # which request of its connection, and what of it


class Connection(Protocol):
    transport: Any
    received: int  # bytes, in all
    seen: "Seen | None"

    def awaited(self) -> Awaited | None:
        """The request that its client has to send now, and which part of it; None: nothing."""

    def time_out(self) -> None:
        """Ends it."""


class Seen(NamedTuple):
    """The result of a look at a connection, times in seconds."""

    what: Awaited
    since: float
    received: int  # when `counted` was
    counted: float


class Standing:
    def __init__(self, head_s: float, body_s: float, per_address: int) -> None:
        """Takes the values of XYLEM_HEAD_S, XYLEM_BODY_S and XYLEM_UNFINISHED."""
        self._head_s, self._body_s, self._per_address = head_s, body_s, per_address

    @classmethod
    def of(cls, settings: Settings) -> "Standing":
        return cls(settings.head_s, settings.body_s, settings.unfinished)

    def look(self, connections: Iterable[Connection], now: float) -> None:
        pending_connections: list[Connection] = []
        for one in list(connections):
            if (what := one.awaited()) is None:
                one.seen = None
            elif one.seen is None or one.seen.what != what:
                one.seen = Seen(what, now, one.received, now)
                pending_connections.append(one)
            elif self._stands(one, one.seen, now):
                one.time_out()
            else:
                pending_connections.append(one)
        if len(pending_connections) > self._per_address:
            self._end_most(pending_connections)

    def _stands(self, one: Connection, look: Seen, now: float) -> bool:
        if look.what[1] == "head":
            return now - look.since >= self._head_s
        if (elapsed_s := now - look.counted) < self._body_s:
            return False
        stands = one.received - look.received < elapsed_s * _LEAST_PER_S
        one.seen = look._replace(received=one.received, counted=now)
        return stands

    def _end_most(self, connections: list[Connection]) -> None:
        """The oldest ones of each address that has too many."""
        by_address: dict[object, list[Connection]] = defaultdict(list)
        for one in connections:
            peer = one.transport.get_extra_info("peername")
            by_address[peer[0] if isinstance(peer, tuple) else peer].append(one)
        for those in by_address.values():
            those.sort(key=lambda one: one.seen.since if one.seen else 0.0)
            for one in those[: max(0, len(those) - self._per_address)]:
                one.time_out()
