"""The two round trips of a round of placement: all that it reads, and all that it writes.

It writes in one step where Redis has Celery's messages, too, else in two. Where the broker is another server, record
and reservation come first, since a message without a record counts for nothing. A reservation without a message, if
this process dies between the two, is found by the worker's audit.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from app.dispatch.fleet.fleet_reader import FleetReader
from app.dispatch.inflight import InFlight
from app.dispatch.placing.embedding_index import EmbeddingIndex
from app.dispatch.placing.placement_commands import Placing
from app.dispatch.placing.placement_round import PlacementRound
from app.dispatch.placing.tenant_shares import TenantShares
from app.errors import StoreDown
from app.store import Command, Wire
from app.telemetry import FLEET_READ

PLACED, SWAPPED = 1, -1  # what `place.lua` returns
_REDIS_S = 30.0  # within which an attempt has failed by itself, if Redis is away


class NotSent(StoreDown):
    """A request may have a record and a reservation, and perhaps a message."""


class PlacementWriter:
    def __init__(self, wire: Wire, broker: Wire | None) -> None:
        """`broker`: the Redis of Celery's messages, if it is another one."""
        self._wire, self._broker = wire, broker
        self.broker_apart = broker is not None
        self.is_away = False  # the broker did not answer last time

    async def check_broker(self) -> None:
        """Nothing is to be reserved for messages that can't be sent. Raises: StoreDown while the broker is away."""
        if self._broker is not None:
            await self._broker.execute([("PING",)])
            self.is_away = False

    async def write(self, placings: Sequence[Placing], others: Sequence[Command]) -> list[Any]:
        """The reply of `place.lua` for each placing, or a StoreDown, which may be a NotSent.

        Nobody needs the replies to `others`.
        """
        try:
            replies = await self._wire.execute_each([p.command for p in placings] + list(others))
        except StoreDown as exc:  # some commands may have been executed
            return [NotSent(exc.message)] * len(placings)
        replies = replies[: len(placings)]
        if self._broker is None:
            return replies
        indices = [i for i, reply in enumerate(replies) if reply == PLACED]
        for i, refusal in zip(indices, await self._send(self._broker, [placings[i] for i in indices]), strict=True):
            if refusal is not None:
                replies[i] = refusal
        return replies

    async def _send(self, broker: Wire, placings: Sequence[Placing]) -> list[NotSent | None]:
        """Sends the placings' messages.

        Sent twice, a message is taken once: the second finds its run begun, its prompt computed, or no record.
        """
        messages = [message for p in placings for message in p.messages]
        try:
            replies = iter(await broker.execute_each(messages))
        except StoreDown as exc:
            self.is_away = True
            return [NotSent(exc.message)] * len(placings)
        refusals = ([next(replies) for _ in p.messages] for p in placings)
        return [next((NotSent(r.message) for r in of_one if isinstance(r, StoreDown)), None) for of_one in refusals]


class RoundReader:
    def __init__(
        self, fleet: FleetReader, embeddings: EmbeddingIndex, shares: TenantShares, writer: PlacementWriter
    ) -> None:
        """`writer`: nothing is read while it can't write."""
        self._fleet, self._embeddings, self._shares, self._writer = fleet, embeddings, shares, writer

    async def read(self, round_: PlacementRound, in_flight: list[InFlight], patience_s: float) -> None:
        """Reads what the round decides by. Raises: StoreDown, also when the patience of one of them is over."""
        if patience_s > _REDIS_S:  # a timeout costs 8 µs of each round
            await self._read(round_, in_flight)
            return
        try:
            async with asyncio.timeout(patience_s):
                await self._read(round_, in_flight)
        except TimeoutError:
            raise StoreDown from None

    async def _read(self, round_: PlacementRound, in_flight: list[InFlight]) -> None:
        """Reads all at once: one round trip. Raises: StoreDown."""
        if self._writer.is_away:
            await self._writer.check_broker()
        began = time.perf_counter()
        fleet, unheard = self._fleet.read(round_.prompts(), round_.grids), self._shares.unheard(in_flight)
        if unheard or round_.encodes:
            embeddings = self._embeddings.read(in_flight)
            round_.views, round_.encoded, _ = await asyncio.gather(fleet, embeddings, self._shares.hear(unheard))
        else:
            round_.views = await fleet
        FLEET_READ.observe(time.perf_counter() - began)
