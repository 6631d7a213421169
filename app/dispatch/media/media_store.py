"""Puts the samples of pictures, sound and embeddings where workers take them: small ones in Redis, large ones here."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import RedisError

from app.dispatch.media.large_samples import LargeSamples
from app.dispatch.media.sample_memory import Excess
from app.errors import DeadlineOver, RequestError, Saturated, StoreDown
from app.ids import RequestId
from app.keys import Keys
from app.messages.held import HeldSamples
from app.messages.media import Media
from app.running.loops import keep
from app.store.scripts import HOLD_MEDIA, RELEASE_MEDIA, RENEW_MEDIA
from app.telemetry import logger
from app.tenants.records import DEFAULT, Client

log = logger(__name__)

_PIECE = 2**20  # bytes; embeddings in one piece would hold up the event loop, and all else that Redis does
_RETRY_S = 0.2
_ROOM_S = 1.0  # between two looks whether there is room
_TENANT, _KEY = 2, 4  # the share of all bytes that one of them may have: one in so many


_BYTES = {"image": 3, "audio": 4, "video": 3}  # of a pixel or a sample


def _least(media: Media) -> int:
    """Bytes that its samples have at least."""
    return max(1, prod(media.shape[:3]) * _BYTES.get(media.kind, 0))


class Samples(NamedTuple):
    """The samples of one request."""

    request: RequestId
    client: Client
    data: Mapping[str, bytes]  # by their hashes
    deadline_s: float  # from now
    waits: bool = False  # for room; else it is refused


class MediaStore:
    """Samples are counted for their key, their tenant and all, and removed when the last request with them ends."""

    def __init__(
        self,
        redis: "Redis",
        keys: Keys,
        patience_s: float,
        most: int,
        left_s: float,
        large: LargeSamples | None = None,
    ) -> None:
        """`redis`: with connections of its own, where nothing waits behind a picture.

        `patience_s`: how long a request waits for Redis, before it is refused. `most`: bytes there, and again here.
        `left_s`: how long samples stay in Redis that no process renews. `large`: None: all are in Redis.
        """
        self._redis, self._keys, self._patience_s = redis, keys, patience_s
        self._most, self._left_ms, self._large = most, round(left_s * 1000), large
        self._held: set[RequestId] = set()
        self._telling: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Renews what requests of this process hold, until cancelled."""
        await keep("media_not_held", lambda: self._told(RENEW_MEDIA, self._held), self._left_ms / 4000, later=True)

    async def put(self, samples: Samples) -> HeldSamples | None:
        """Writes the samples that aren't there already. Returns where workers collect those that are too large for it.

        Raises: RequestError, Saturated, DeadlineOver, StoreDown, MediaLost.
        """
        end = time.monotonic() + samples.deadline_s
        patient = time.monotonic() + min(self._patience_s, samples.deadline_s)
        while True:
            try:
                outcome = await self._put(samples)
            except (RedisError, OSError) as exc:
                if time.monotonic() > patient:
                    raise StoreDown from exc
                await asyncio.sleep(_RETRY_S)
                continue
            if not isinstance(outcome, Excess):
                return outcome
            self._refuse(samples, *outcome)
            if time.monotonic() + _ROOM_S > end:
                raise DeadlineOver
            await asyncio.sleep(_ROOM_S)

    async def has(self, media: Sequence[Media]) -> bool:
        """Whether the samples of all are there, and whole. Of a Redis that is away it is said that they are."""
        try:
            pipe = self._redis.pipeline(transaction=False)
            for one in media:
                pipe.strlen(self._keys.media(one.sha256))
            lengths = await pipe.execute()
        except (RedisError, OSError):
            return True
        return all(length >= _least(one) for length, one in zip(lengths, media, strict=True))

    async def adopt(self, request: RequestId) -> None:
        """Takes the place of a process that held them, and died."""
        self._held.add(request)
        await self._told(RENEW_MEDIA, [request])

    def release(self, request: RequestId, *, continued: bool = False) -> None:
        """The request has ended. `continued`: another process may continue it, and needs those in Redis."""
        if self._large is not None:
            self._large.release(request)
        if request not in self._held:
            return
        self._held.discard(request)
        if not continued:
            telling = asyncio.create_task(self._told(RELEASE_MEDIA, [request]))  # its answer needn't wait for this
            self._telling.add(telling)
            telling.add_done_callback(self._telling.discard)

    async def close(self) -> None:
        if self._large is not None:
            await self._large.close()

    async def _put(self, samples: Samples) -> Excess | HeldSamples | None:
        """Puts the samples where they belong, unless an owner would have too many bytes.

        Raises: RedisError, OSError, MediaLost.
        """
        request, client, offer = samples.request, samples.client, None
        tenant = client.tenant.name if client.key and client.tenant.name != DEFAULT else ""
        large = {} if self._large is None else self._large.among(samples.data)
        if large and self._large is not None:
            shares = {"all": self._most}
            shares |= {f"tenant:{tenant}": self._most // _TENANT} if tenant else {}
            shares |= {f"key:{client.key}": self._most // _KEY} if client.key else {}
            offer = await self._large.hold(request, large, shares)
            if isinstance(offer, Excess):
                return offer
        small = {name: data for name, data in samples.data.items() if name not in large}
        if (small or not large) and (excess := await self._write_all(request, f"{client.key}|{tenant}", small)):
            if self._large is not None:
                self._large.release(request)
            return excess
        return offer

    async def _write_all(self, request: RequestId, owner: str, data: Mapping[str, bytes]) -> Excess | None:
        """`owner`: as `hold.lua` has it. Raises: RedisError, OSError."""
        most = f"{self._most} {self._most // _TENANT} {self._most // _KEY}"
        sizes = [part for name, one in data.items() for part in (name, len(one))]
        self._held.add(request)  # first: this may be cancelled
        first, *rest = await self._run(HOLD_MEDIA, request, owner, self._left_ms, *(most, *sizes))
        if first:
            self._held.discard(request)
            return Excess(sum(map(len, data.values())), first.decode(), *rest)
        for (name, one), size in zip(data.items(), rest, strict=True):
            if size != len(one):  # another replica may be writing the same bytes
                await self._write(self._keys.media(name), one)
        return None

    def _refuse(self, samples: Samples, size: int, owner: str, has: int, most: int) -> None:
        """Raises: RequestError, if the request never fits; Saturated, unless it waits."""
        whose = {"key": "of one API key", "tenant": "of one tenant"}.get(owner.partition(":")[0], "here")
        limit = f"the {most} bytes that pictures and sounds of requests {whose} may have, unpacked (XYLEM_MEDIA_HELD)"
        if size > most:
            raise RequestError(f"The request's pictures and sounds have {size} bytes, unpacked: more than {limit}.")
        if not samples.waits:
            raise Saturated(f"Other requests in progress have {has} of {limit}. Try again when one has ended.")

    async def _write(self, key: str, data: bytes) -> None:
        view = memoryview(data)
        for start in range(0, len(data), _PIECE):
            piece = self._redis.pipeline(transaction=False)
            piece.setrange(key, start, bytes(view[start : start + _PIECE]))
            if start == 0:
                piece.pexpire(key, self._left_ms, nx=True)
            await piece.execute()

    async def _told(self, script: str, requests: Iterable[RequestId]) -> None:
        """Runs the script for these requests' samples. If Redis is away, they are removed when their time is over."""
        if not (request_ids := list(requests)):
            return
        try:
            await self._run(script, self._left_ms, *request_ids)
        except (RedisError, OSError) as exc:
            log.warning("media_not_told", requests=len(request_ids), error=repr(exc))

    async def _run(self, script: str, *args: Any) -> Any:
        return await self._redis.eval(script, 3, *self._keys.media_held(), *args)
