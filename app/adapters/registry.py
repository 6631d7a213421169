"""The adapters that are wanted: `loras` in Redis, for all processes of the deployment."""

from collections.abc import Callable
from typing import cast

import msgspec
from msgspec.structs import replace
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from app.errors import ModelNotFound, RequestError
from app.keys import Keys
from app.messages.wanted import Adapter, decode_adapter
from app.messages.wire import encode
from app.store import clock
from app.telemetry import logger

log = logger(__name__)

MOST = 4096  # adapters: every process knows all of them


def decoded(fields: dict[bytes, bytes]) -> dict[str, Adapter]:
    """Adapters by name; without what a newer version may have written otherwise."""
    adapters = {}
    for raw in fields.values():
        try:
            adapter = decode_adapter(raw)
        except msgspec.DecodeError as exc:
            log.error("adapter_not_understood", error=str(exc))
        else:
            adapters[adapter.name] = adapter
    return adapters


class AdapterRegistry:
    """Raises redis-py's errors, all of it."""

    def __init__(self, redis: "Redis", keys: Keys) -> None:
        self._redis = redis
        self._adapters, self._version = keys.loras()

    async def add(self, adapter: Adapter) -> tuple[Adapter, Adapter | None]:
        """Adds an adapter. Returns it as it is kept, and what was there.

        That is the same already, if it differs in version and time only. Raises: RequestError when there is another one
        of that name, or too many.
        """

        def change(adapters: dict[str, Adapter]) -> Adapter | None:
            old = adapters.get(adapter.name)
            if old is not None and replace(adapter, version=old.version, created=old.created) == old:
                return None
            if old is not None:
                raise RequestError(f"There is an adapter '{adapter.name}' already: swap it.", param="name")
            if len(adapters) >= MOST:
                raise RequestError(f"There are {MOST} adapters already.", param="name")
            return adapter

        entry, before = await self._write(adapter.name, change)
        return entry or before[adapter.name], before.get(adapter.name)

    async def swap(self, name: str, change: Callable[[Adapter], Adapter]) -> tuple[Adapter, Adapter]:
        """The new version, and the old one. Raises: ModelNotFound."""
        entry, before = await self._write(name, lambda adapters: change(_found(adapters, name)))
        assert entry is not None
        return entry, before[name]

    async def remove(self, name: str) -> Adapter:
        """Removes an adapter, and returns what it was. Raises: ModelNotFound."""

        async def attempt(pipe: "Pipeline") -> Adapter:
            old = _found(await self._known(pipe), name)
            version = await self._next(pipe)
            pipe.multi()  # type: ignore[no-untyped-call]
            pipe.hdel(self._adapters, name)
            pipe.set(self._version, version)
            return old

        adapter: Adapter = await self._redis.transaction(attempt, *self._watched, value_from_callable=True)
        return adapter

    async def all(self) -> dict[str, Adapter]:
        return await self._known(self._redis)

    @property
    def _watched(self) -> tuple[str, str]:
        return self._adapters, self._version

    async def _write(
        self, name: str, change: Callable[[dict[str, Adapter]], Adapter | None]
    ) -> tuple[Adapter | None, dict[str, Adapter]]:
        async def attempt(pipe: "Pipeline") -> tuple[Adapter | None, dict[str, Adapter]]:
            adapters = await self._known(pipe)
            entry = change(adapters)
            version = await self._next(pipe)
            pipe.multi()  # type: ignore[no-untyped-call]
            if entry is None:
                return None, adapters
            entry = replace(entry, version=version, created=clock.now())
            pipe.hset(self._adapters, name, encode(entry))
            pipe.set(self._version, version)
            return entry, adapters

        result: tuple[Adapter | None, dict[str, Adapter]] = await self._redis.transaction(
            attempt, *self._watched, value_from_callable=True
        )
        return result

    async def _known(self, redis: "Redis") -> dict[str, Adapter]:
        return decoded(cast(dict[bytes, bytes], await redis.hgetall(self._adapters)))

    async def _next(self, pipe: "Pipeline") -> int:
        """A Redis that forgot its last second would count the same again; its clock does not."""
        last = await pipe.get(self._version)
        return max(int(last or 0) + 1, round(clock.now() * 1000))


def _found(adapters: dict[str, Adapter], name: str) -> Adapter:
    if name not in adapters:
        raise ModelNotFound(f"There is no adapter '{name}'.", param="name")
    return adapters[name]
