"""Writes a round's placements: in one step where Redis has Celery's messages, too, else in two.

Where the broker is another server, record and reservation come first, since a message without a record counts for
nothing. A reservation without a message, if this process dies between the two, is found by the worker's audit.
"""

from collections.abc import Sequence
from typing import Any

from app.dispatch.placing.placement_commands import Placing
from app.errors import StoreDown
from app.store import Command, Wire

PLACED, SWAPPED = 1, -1  # what `place.lua` returns


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
