"""Faults that can happen. Each is done to a whole fleet, and returns when its cause is over."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Container, Iterator
from contextlib import contextmanager, suppress

import httpx
from redis.exceptions import RedisError

from tests.chaos.batches import submitted
from tests.chaos.fleet import Fleet
from tests.hostile_grammars import DEEP, rules

Fault = Callable[[Fleet, random.Random], Awaitable[None]]


def _worker(fleet: Fleet, rng: random.Random) -> str:
    return rng.choice(fleet.victims)


async def worker_killed(fleet: Fleet, rng: random.Random) -> None:
    """Kills a worker, as the kernel does for want of memory."""
    name = _worker(fleet, rng)
    fleet.process(name).send_signal(signal.SIGKILL)
    await _restart(fleet, name)


async def all_workers_killed(fleet: Fleet, rng: random.Random) -> None:
    """Kills all workers; a request that comes meanwhile waits for the first that is back."""
    names = [name for name, _ in fleet.worker_names]
    with _outage(fleet):
        for name in names:
            fleet.process(name).send_signal(signal.SIGKILL)
        for name in names:
            await _restart(fleet, name)
        await _until(fleet.answers)


async def two_workers_killed(fleet: Fleet, rng: random.Random) -> None:
    names = rng.sample([name for name, _ in fleet.worker_names], 2)
    for name in names:
        fleet.process(name).send_signal(signal.SIGKILL)
        await asyncio.sleep(rng.uniform(0, 0.5))
    for name in names:
        await _restart(fleet, name)


async def worker_stands_still(fleet: Fleet, rng: random.Random) -> None:
    """Stops a worker for longer than its lease: others have its requests when it wakes, and it answers too late."""
    process = fleet.process(_worker(fleet, rng))
    process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(rng.uniform(2.5, 6))
    process.send_signal(signal.SIGCONT)


async def worker_hiccups(fleet: Fleet, rng: random.Random) -> None:
    """Stops a worker for less than its lease."""
    process = fleet.process(_worker(fleet, rng))
    process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(rng.uniform(0.2, 1))
    process.send_signal(signal.SIGCONT)


async def worker_drained(fleet: Fleet, rng: random.Random) -> None:
    name = _worker(fleet, rng)
    await _drain(fleet, name)


async def worker_made_to_leave(fleet: Fleet, rng: random.Random) -> None:
    """A second SIGTERM: what runs is handed over."""
    name = _worker(fleet, rng)
    fleet.process(name).send_signal(signal.SIGTERM)
    await asyncio.sleep(rng.uniform(0.1, 0.5))
    fleet.process(name).send_signal(signal.SIGTERM)
    await _drain(fleet, name)


async def rolling_restart(fleet: Fleet, rng: random.Random) -> None:
    for name, _ in fleet.worker_names:
        await _drain(fleet, name)
        await _until(lambda name=name: name in fleet.live_workers())  # type: ignore[misc]


async def redis_restarted(fleet: Fleet, rng: random.Random) -> None:
    await _restart_redis(fleet, signal.SIGTERM, rng.uniform(0, 1))


async def redis_killed(fleet: Fleet, rng: random.Random) -> None:
    """Kills Redis with its machine: it comes back without up to a second of what it knew."""
    log = max((fleet.directory / "redis/appendonlydir").glob("*.incr.aof"), key=lambda path: path.stat().st_mtime)
    length = log.stat().st_size
    await asyncio.sleep(rng.uniform(0, 1))
    await _restart_redis(fleet, signal.SIGKILL, rng.uniform(0, 2), lambda: os.truncate(log, length))


async def redis_stands_still(fleet: Fleet, rng: random.Random) -> None:
    await _freeze_redis(fleet, rng.uniform(1, 8))


async def redis_stands_still_for_long(fleet: Fleet, rng: random.Random) -> None:
    await _freeze_redis(fleet, 30)


async def connections_cut(fleet: Fleet, rng: random.Random) -> None:
    """All of them, a few times."""
    for _ in range(rng.randint(1, 4)):
        for kind in ("normal", "pubsub"):
            try:
                fleet.redis.execute_command("CLIENT", "KILL", "TYPE", kind)
            except RedisError:
                pass  # our own connection is among them
        await asyncio.sleep(rng.uniform(0, 0.5))


async def proxy_closes(fleet: Fleet, rng: random.Random) -> None:
    """Makes the proxy before Redis accept connections and close them at once."""
    if fleet.proxy is not None:
        with _outage(fleet):
            await asyncio.to_thread(fleet.proxy.closes)
            await asyncio.sleep(rng.uniform(1, 8))
            await asyncio.to_thread(fleet.proxy.passes)


async def connections_forgotten(fleet: Fleet, rng: random.Random) -> None:
    """Nothing comes any more on those that there are, and nothing closes them."""
    if fleet.proxy is not None:
        await asyncio.to_thread(fleet.proxy.forgets)


async def api_killed(fleet: Fleet, rng: random.Random) -> None:
    index = rng.choice(fleet.api_victims)
    fleet.process(f"api-{index}").send_signal(signal.SIGKILL)
    await asyncio.sleep(rng.uniform(0, 1))
    fleet.process(f"api-{index}").wait()
    fleet.start_api(index)


async def api_and_worker_killed(fleet: Fleet, rng: random.Random) -> None:
    await asyncio.gather(api_killed(fleet, rng), worker_killed(fleet, rng))


async def worker_and_redis_killed(fleet: Fleet, rng: random.Random) -> None:
    await asyncio.gather(worker_killed(fleet, rng), redis_killed(fleet, rng))


async def usage_writer_killed(fleet: Fleet, rng: random.Random) -> None:
    """Kills the usage writer: what it has written may still be in Redis, for the next one."""
    if fleet.usage is not None:
        fleet.process("usage").send_signal(signal.SIGKILL)
        await asyncio.to_thread(fleet.process("usage").wait)
        fleet.start_usage_writer()


async def stored_blocks_lost(fleet: Fleet, rng: random.Random) -> None:
    """Others remove some of a store's files, and damage some."""
    files = [path for path in fleet.store.rglob("*") if path.is_file()] if fleet.store else []
    for path in rng.sample(files, len(files) // 2):
        with suppress(FileNotFoundError):  # the fleet removes some, too
            path.unlink() if rng.random() < 0.5 else path.write_bytes(path.read_bytes()[:-1])


async def grammars_that_kill_compilers(fleet: Fleet, rng: random.Random) -> None:
    """Each is refused, by a process that goes on."""
    # A batch with a line that kills batch workers may be running.
    processes = [proc for name, proc in fleet.stack.names.items() if name not in fleet.batch_names]
    before = [proc for proc in processes if proc.poll() is None]
    body = {"model": "mock", "messages": [{"role": "user", "content": "?"}]}
    for field, grammar in (("guided_grammar", rules(4000)), *(("guided_json", schema) for schema in DEEP.values())):
        status = None
        async with httpx.AsyncClient(timeout=60) as client, asyncio.timeout(90):
            while status is None:
                url = f"{rng.choice(fleet.urls())}/v1/chat/completions"
                with suppress(httpx.TransportError):  # the replica is only being started
                    status = (await client.post(url, json=body | {field: grammar})).status_code
                await asyncio.sleep(0.1)
        assert status == 400
    assert all(proc.poll() is None for proc in before)


async def line_that_kills_batch_workers(fleet: Fleet, rng: random.Random) -> None:
    """Among others of its batch, which ends while further faults come."""
    if fleet.batch_names:
        fleet.batches.append(await submitted(fleet, rng))


FAULTS: tuple[tuple[Fault, int], ...] = (  # and how often, to compare
    (worker_killed, 20),
    (two_workers_killed, 6),
    (line_that_kills_batch_workers, 3),
    (all_workers_killed, 2),
    (worker_stands_still, 8),
    (worker_hiccups, 8),
    (worker_drained, 8),
    (worker_made_to_leave, 6),
    (rolling_restart, 2),
    (redis_restarted, 7),
    (redis_killed, 7),
    (redis_stands_still, 5),
    (redis_stands_still_for_long, 1),
    (connections_cut, 8),
    (proxy_closes, 5),
    (connections_forgotten, 5),
    (api_killed, 8),
    (grammars_that_kill_compilers, 4),
    (api_and_worker_killed, 3),
    (worker_and_redis_killed, 3),
    (stored_blocks_lost, 4),
    (usage_writer_killed, 4),
)


NAMES = [fault.__name__ for fault, _ in FAULTS]

# Only time tells of them: nobody can get on before it is over.
SILENT: frozenset[Fault] = frozenset({connections_forgotten})


def plan(count: int, rng: random.Random, only: Container[str] = NAMES) -> list[Fault]:
    """Faults by their names, so many, in a random order: each of them at least once, if there are enough."""
    weights = {fault: weight for fault, weight in FAULTS if fault.__name__ in only}
    faults = [*weights][:count]
    faults += rng.choices([*weights], [*weights.values()], k=count - len(faults))
    rng.shuffle(faults)
    return faults


async def _until(condition: Callable[[], bool], timeout_s: float = 90) -> None:
    async with asyncio.timeout(timeout_s):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.1)


async def _restart(fleet: Fleet, name: str) -> None:
    await asyncio.to_thread(fleet.process(name).wait)
    fleet.start_worker(name)


async def _drain(fleet: Fleet, name: str) -> None:
    process = fleet.process(name)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    await asyncio.to_thread(process.wait, 60)
    fleet.start_worker(name)


async def _restart_redis(
    fleet: Fleet, by: signal.Signals, pause_s: float, meanwhile: Callable[[], None] = lambda: None
) -> None:
    process = fleet.redis_process
    assert process is not None
    with _outage(fleet):
        process.send_signal(by)
        await asyncio.to_thread(process.wait)
        meanwhile()
        await asyncio.sleep(pause_s)
        await asyncio.to_thread(fleet.start_redis)


async def _freeze_redis(fleet: Fleet, seconds: float) -> None:
    assert fleet.redis_process is not None
    with _outage(fleet):
        fleet.redis_process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        fleet.redis_process.send_signal(signal.SIGCONT)


@contextmanager
def _outage(fleet: Fleet) -> Iterator[None]:
    """An outage of Redis, or of every worker, by our doing, while the block runs: nobody can get on before its end."""
    began = time.monotonic()
    yield
    fleet.outages.append((began, time.monotonic()))
