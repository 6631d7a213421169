"""A request's timeline, asked through Redis from the process that makes its answer: the id names that process."""

import asyncio
import secrets
from typing import Any, cast

import msgspec
import orjson
from redis.asyncio import Redis
from redis.exceptions import RedisError

from app.dispatch.observing.timeline import Timelines
from app.dispatch.observing.timeline_types import RequestTimeline
from app.errors import RequestNotFound, StoreDown
from app.ids import ApiId, KeyId, RequestId, made_by
from app.keys import Keys
from app.messages.commands import Look, decode_look
from app.messages.wire import encode
from app.running.loops import keep
from app.store import Command, Wire, store_down
from app.telemetry import logger

log = logger(__name__)

_EVERY_S = 0.25  # how often a process looks for questions
_SILENT_S = 2.0  # how long an answer is waited for
_TTL_S = 60
_AT_ONCE = 64  # questions
_CONNECTIONS = 8  # to Redis, on which answers are waited for


class RequestLookup:
    """The lookup of requests' timelines, on the event loop of an API replica or a batch worker."""

    def __init__(self, wire: Wire, redis: "Redis", keys: Keys, api: ApiId, timelines: Timelines) -> None:
        self._wire, self._redis, self._keys, self._api, self._timelines = wire, redis, keys, api, timelines
        self._few = asyncio.Semaphore(_CONNECTIONS)

    async def run(self) -> None:
        """Answers what others ask, until cancelled."""
        await keep("questions_not_answered", self._answer, _EVERY_S, later=True)

    async def find(self, request: RequestId, key: KeyId | None) -> RequestTimeline:
        """The timeline as from `Timelines.show`, also from other processes. Raises: RequestNotFound, StoreDown."""
        timeline = self._timelines.show(request, key)
        if timeline is None and (api := await self._owner(request)) is not None:
            reply = await self._ask(api, Look(secrets.token_hex(8), request, key))
            timeline = orjson.loads(reply) if reply else None
        if timeline is None:
            raise RequestNotFound(f"You have no request '{request}' that runs or has ended lately.")
        return timeline

    async def _owner(self, request: RequestId) -> ApiId | None:
        """The process to ask: the request's owner, if it is another process and lives."""
        maker = made_by(request)
        if maker is None:
            return None
        (adopter,) = await self._wire.execute([("HGET", self._keys.kept(request), "owner")])
        owner = ApiId(adopter.decode()) if adopter else maker
        (lives,) = await self._wire.execute([("EXISTS", self._keys.api(owner))])
        return owner if lives and owner != self._api else None

    async def _ask(self, api: ApiId, look: Look) -> bytes:
        """Raises: StoreDown, also when that process does not answer."""
        key = self._keys.commands(api)
        async with self._few:
            await self._wire.execute([("RPUSH", key, encode(look)), ("EXPIRE", key, _TTL_S)])
            try:
                reply = await cast(Any, self._redis.blpop([self._keys.reply(look.id)], timeout=_SILENT_S))
            except RedisError as exc:
                raise store_down(exc) from exc
        if reply is None:
            raise StoreDown("The API replica that has this request does not answer. Try again.")
        return cast(bytes, reply[1])

    async def _answer(self) -> None:
        """Raises: StoreDown."""
        (questions,) = await self._wire.execute([("LPOP", self._keys.commands(self._api), _AT_ONCE)])
        commands: list[Command] = []
        for raw in questions or ():
            try:
                look = decode_look(raw)
            except msgspec.DecodeError as exc:  # another version's
                log.error("question_not_understood", error=str(exc))
                continue
            timeline = self._timelines.show(look.request, look.key)
            reply = self._keys.reply(look.id)
            commands += [("RPUSH", reply, orjson.dumps(timeline) if timeline else b""), ("EXPIRE", reply, _TTL_S)]
        await self._wire.execute(commands)
