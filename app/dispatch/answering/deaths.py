"""Counts the workers that died with a request: in Redis as soon as one has, for whoever adopts its answer."""

from collections.abc import Sequence
from contextlib import suppress

from app.dispatch.inflight import InFlight
from app.errors import StoreDown
from app.ids import RequestId
from app.keys import Keys
from app.store import Wire, clock
from app.telemetry import logger

log = logger(__name__)

_LEAST_S = 60  # of the record's life; else up to the request's deadline


class Deaths:
    """A request whose workers live costs nothing. Without Redis nothing is noted or recalled."""

    def __init__(self, wire: Wire, keys: Keys) -> None:
        self._wire, self._keys = wire, keys

    async def note(self, inflight: InFlight) -> None:
        life_s = max(_LEAST_S, round(inflight.job.deadline - clock.now()))
        counts = f"{inflight.early_deaths} {inflight.deaths}"
        with suppress(StoreDown):
            await self._wire.execute([("SET", self._name(inflight.job.request), counts, "EX", life_s)])

    async def recall(self, in_flight: Sequence[InFlight]) -> None:
        with suppress(StoreDown):
            replies = await self._wire.execute([("GET", self._name(inflight.job.request)) for inflight in in_flight])
            for inflight, counts in zip(in_flight, replies, strict=True):
                try:
                    early, deaths = map(int, (counts or b"0 0").split())
                except ValueError:  # a hand or another version wrote it
                    log.error("deaths_not_understood", request=inflight.job.request, counts=repr(counts[:100]))
                else:
                    inflight.early_deaths, inflight.deaths = early, deaths

    def _name(self, request: RequestId) -> str:
        return self._keys.handling(f"request:{request}")
