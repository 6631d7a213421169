"""A clean Redis, its keys, and workers that exist only as leases."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from app.dispatch.answering.dispatcher import Dispatcher
from app.dispatch.answering.liveness import LivenessWatch
from app.dispatch.answering.token_inbox import TokenInbox
from app.dispatch.fleet.fleet_reader import FleetReader
from app.dispatch.models.adapter_table import AdapterTable
from app.ids import PoolId, WorkerId
from app.keys import Keys
from app.messages.lease import Lease, Worker
from app.messages.wire import encode
from app.pools.schema import Pool
from app.running.ending import end_tasks
from app.store import Wire, async_client
from app.store.scripts import TELL
from tests.leases import changed

POOL = PoolId("decode-pool-a")


@pytest_asyncio.fixture(autouse=True)
async def wires(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[Wire]]:
    """All of a test. What a test leaves running may connect again behind its end: each is closed when nothing runs."""
    instances: list[Wire] = []
    begin = Wire.__init__

    def noted(self: Wire, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        instances.append(self)

    monkeypatch.setattr(Wire, "__init__", noted)
    yield instances
    await _end_others()
    for one in instances:
        one.close()
    await asyncio.sleep(0)  # in which their sockets are closed


@pytest_asyncio.fixture
async def redis(store_url: str) -> AsyncIterator["Redis"]:
    client = async_client(store_url)
    await client.flushall()
    yield client
    await _end_others()
    await client.aclose()


@pytest_asyncio.fixture
async def wire(redis: "Redis") -> AsyncIterator[Wire]:
    w = Wire(redis)
    yield w
    await _end_others()
    w.close()


async def _end_others() -> None:
    """Ends the tasks that a test has left running.

    They would connect again, and their sockets would be found open in another test.
    """
    while others := asyncio.all_tasks() - {asyncio.current_task()}:  # also those that begin as others end
        await end_tasks(others)


async def register(
    redis: "Redis", keys: Keys, worker: str, *, ttl_s: float = 60, max_running: int = 8, **lease: Any
) -> WorkerId:
    """A worker as far as routing can see."""
    own = Worker(
        id=WorkerId(worker),
        pool=POOL,
        role="both",
        host="here",
        pid=1,
        block_size=32,
        total_blocks=1000,
        max_running=max_running,
        max_model_len=4096,
        kv_events=True,
    )
    full_lease = changed(Lease(own), **lease)
    own = full_lease.worker
    await redis.set(keys.worker(own.id), encode(full_lease), px=round(ttl_s * 1000))
    await redis.hset(keys.pool(own.pool), own.id, f"{own.ranks},{int(own.kv_events)}")
    await redis.eval(TELL, 1, keys.changed(own.pool), own.id)
    return own.id


async def had_worker(redis: "Redis", keys: Keys, lately_s: float = 60) -> None:
    """The last of the pool's workers has gone, and for `lately_s` seconds it is not long ago."""
    await redis.set(keys.seen(POOL), "1", px=round(lately_s * 1000))


async def nobody_told() -> None:
    """Does nothing: for an index whose number the test knows."""


def watch_of(
    wire: Wire, keys: Keys, dispatcher: Dispatcher, pools: Mapping[PoolId, Pool], tokens: Wire | None = None
) -> LivenessWatch:
    """The liveness watch of that dispatcher's replica; `tokens`: where its tokens come, if not there."""
    inbox = TokenInbox(tokens or wire, keys, dispatcher.api, dispatcher.deliver, dispatcher.worker_lost)
    fleet = FleetReader(wire, keys, pools, 1024)
    return LivenessWatch(wire, keys, dispatcher, inbox, fleet, pools, AdapterTable(wire, keys, {}), counts=True)
