"""LoRA adapters' files on every host of an engine that spans several: its leader names them, and the others fetch."""

import asyncio
from functools import partial

from app.adapters.fetch import fetch
from app.adapters.local_store import HeldAdapter, LocalStore
from app.errors import AdapterFailed
from app.messages.wanted import Adapter
from app.running.loops import keep
from app.settings import Settings
from app.telemetry import logger
from workers.engine.group_member import GroupMember

log = logger(__name__)

_LOOK_S = 0.1  # as often as the members look at each other


class LeaderAdapters:
    """Adapters that the engine of a group has, or is about to load. On the engine's loop."""

    def __init__(self, member: GroupMember, settings: Settings) -> None:
        self._member, self._wanted = member, dict[str, Adapter]()
        member.tell(lora_store=str(settings.lora_store_path))

    async def spread(self, adapter: Adapter) -> None:
        """Returns when each follower has its files. Raises: AdapterFailed."""
        name = adapter.versioned
        self._wanted[name] = adapter
        self._tell()
        while not all(name in follower.has_adapters for follower in self._member.followers):
            for follower in self._member.followers:
                if name in follower.lacks_adapters:
                    raise AdapterFailed(f"On the host {follower.address}: {follower.lacks_adapters[name]}")
            await asyncio.sleep(_LOOK_S)

    def drop(self, name: str) -> None:
        """The engine has it no longer, or does not get it."""
        self._wanted.pop(name, None)
        self._tell()

    def _tell(self) -> None:
        self._member.tell(adapters=list(self._wanted.values()))


class FollowerAdapters:
    """Files of the leader's adapters on this host, kept as long as the leader names them."""

    def __init__(self, member: GroupMember, settings: Settings) -> None:
        self._member, self._settings = member, settings
        self._store = LocalStore(settings.lora_store_path, settings.lora_store_bytes)
        self._held: dict[str, HeldAdapter] = {}
        self._failed: dict[str, str] = {}

    async def run(self) -> None:
        """Follows until cancelled."""
        try:
            await keep("adapters_not_followed", self._look, _LOOK_S)
        finally:
            for hold in self._held.values():  # the engine ends too
                hold.release()

    async def _look(self) -> None:
        adapters = {adapter.versioned: adapter for adapter in self._member.leader.adapters}
        old_names = self._held.keys() - adapters.keys()
        for name in old_names:
            self._held.pop(name).release()
        failures = {name: why for name, why in self._failed.items() if name in adapters}
        news = [name for name in adapters if name not in self._held and name not in failures]
        if not news and not old_names and failures == self._failed:
            return
        self._failed = failures
        for name in news:
            try:
                self._held[name] = await self._hold(adapters[name])
            except AdapterFailed as exc:
                log.error("adapter_failed", adapter=name, reason=exc.message)
                self._failed[name] = exc.message
        self._member.tell(has_adapters=list(self._held), lacks_adapters=dict(self._failed))

    async def _hold(self, adapter: Adapter) -> HeldAdapter:
        """Raises: AdapterFailed."""
        here, there = str(self._settings.lora_store_path), self._member.leader.lora_store
        if here != there:  # where the engine's processes look for it
            raise AdapterFailed(f"XYLEM_LORA_STORE is {here}, and {there} where the engine is led.")
        get = partial(fetch, adapter, settings=self._settings)
        return await asyncio.to_thread(self._store.hold, adapter.versioned, get)
