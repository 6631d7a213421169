"""The part of an SGLang that spans several hosts on one that does not lead: its schedulers there, without requests."""

import asyncio
from collections.abc import Callable

from sglang.srt.entrypoints.engine import Engine

from app.engines.base import KvEventSource, Node
from app.engines.pool_args import set_environment
from app.engines.sglang.args import engine_args, event_ranks
from app.engines.sglang.events import event_sources
from app.engines.sglang.processes import Processes, own_sigquit, remove_files
from app.pools.schema import Pool


class SglangFollower:
    """Implements `app.engines.base.Follower`."""

    def __init__(self, pool: Pool, node: Node) -> None:
        """Raises: SettingsError (unknown arguments)."""
        self._args = engine_args(pool, node.address, node)
        self._ranks = event_ranks(pool, node)
        self._processes = Processes()
        self._engine: Engine | None = None  # set by start
        own_sigquit()

    async def start(self, on_death: Callable[[], None]) -> None:
        set_environment(self._args.environment)
        self._engine = await self._processes.start(self._args.fields)
        self._processes.watch(on_death)

    def kv_events(self) -> dict[int, KvEventSource]:
        config = self._args.fields.get("kv_events_config")
        return event_sources(config, self._ranks, {}) if config else {}

    async def close(self) -> None:
        self._processes.forget()
        await asyncio.to_thread(self._processes.end)
        if self._engine is not None:
            remove_files(self._engine.port_args)
