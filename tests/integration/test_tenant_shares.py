"""Tenants of several API replicas share one worker, over a real Redis; the worker is only a lease, and a test ends its
requests."""

import asyncio
from collections import Counter
from functools import partial
from itertools import count

from redis.asyncio import Redis

from app.dispatch.answering.dispatcher import Dispatcher
from app.dispatch.event_queue import EventQueue
from app.dispatch.fleet.fleet_reader import FleetReader
from app.dispatch.inflight import InFlight, RoutingHints
from app.ids import ApiId, PoolId, RequestId, TenantId
from app.keys import Keys
from app.messages.events import Delta, Done
from app.messages.job import Job, Sampling
from app.messages.lease import Speeds
from app.pools.schema import Pool
from app.routing.fair_order import Flow
from app.store import Wire, clock
from app.store.scripts import RELEASE
from app.tenants.records import Tenant
from tests.background import beside, until
from tests.integration.conftest import POOL, register

KEYS = Keys("shares")
POOLS = {PoolId(POOL): Pool(model="m", engine="mock")}
SPEEDS = Speeds(prefill_tokens_per_s=10_000.0, step_s=0.01, request_step_s=0.001, request_s=1.0)
_numbers = count()


class Replica:
    """A replica of the API."""

    def __init__(self, wire: Wire, name: str, queued: int = 16) -> None:
        self.wire, self.api = wire, ApiId(name)
        self.dispatcher = Dispatcher(wire, KEYS, self.api, FleetReader(wire, KEYS, POOLS, queued), POOLS, patience_s=60)

    def ask(self, tenant: str, weight: float = 1.0, *, tokens: int = 100, prompt: int = 10) -> InFlight:
        request, sampling = RequestId(f"r{next(_numbers)}"), Sampling(max_tokens=tokens)
        job = Job(request, 0, self.api, [1] * prompt, sampling, clock.now() + 60)
        inflight = InFlight(job, ((POOL,),), EventQueue(), RoutingHints())
        inflight.tenant = Tenant(TenantId(tenant), weight=weight)
        self.asking = asyncio.create_task(self.dispatcher.send(inflight))
        return inflight

    @property
    def running(self) -> list[InFlight]:
        return [f for f in self.dispatcher.in_flight.values() if f.is_placed and f.job.worker]

    async def end(self, f: InFlight, tokens: int = 100) -> None:
        """Ends the request as its worker does, with an answer of so many tokens."""
        keys = KEYS.release(f.job.run, f.job.worker, POOL)
        await self.wire.execute([("EVAL", RELEASE, len(keys), *keys, f.job.run, "ended", f.job.worker)])
        request = f.job.request, f.job.attempt
        self.dispatcher.deliver(Delta(*request, "", [1] * tokens), Done(*request))
        self.dispatcher.spent([f], [Done(*request)])


async def worker(redis: "Redis", seats: int) -> None:
    await register(redis, KEYS, "w1", max_running=seats, speeds=SPEEDS)


async def test_floods_at_different_replicas_are_served_by_their_weights(redis: "Redis", wire: Wire) -> None:
    """Each replica has one tenant's requests, and neither hears of the end of the other's."""
    await worker(redis, 8)
    one, three = Replica(wire, "one", 0), Replica(wire, "three", 0)
    async with beside(one.dispatcher.placer.run()), beside(three.dispatcher.placer.run()):
        for _ in range(60):
            one.ask("one", 1.0)
            three.ask("three", 3.0)
        await until(lambda: len(one.running) + len(three.running) >= 6)
        services = [r.dispatcher.placer.shares.of(r.running[0]) for r in (one, three)]
        await until(lambda: all(s.is_shared for s in services))
        counts = Counter[str]()
        for _ in range(56):
            running = one.running + three.running
            first = min(running, key=lambda f: f.attempt.placed_at)
            await (one if first in one.running else three).end(first)
            counts[first.tenant.name] += 1
            seat_count = min(len(running), 6)
            await until(partial(lambda n: len(one.running + three.running) >= n, seat_count))
        counts.update(f.tenant.name for f in one.running + three.running)
    assert abs(counts["one"] - counts.total() / 4) <= 3, counts


async def test_a_quiet_tenant_finds_a_seat_at_once_beside_a_flood(redis: "Redis", wire: Wire) -> None:
    """The flood is at another replica.

    It may take all the seats while it is alone, and no more than its share afterwards.
    """
    await worker(redis, 16)
    flood, other = Replica(wire, "flood", 0), Replica(wire, "other", 0)
    async with beside(flood.dispatcher.placer.run()), beside(other.dispatcher.placer.run()):
        first = other.ask("quiet")
        await until(lambda: first.job.worker)
        await other.end(first)
        await told(redis, "quiet")
        for _ in range(40):
            flood.ask("flood")
        await until(lambda: len(flood.running) >= 13)
        await asyncio.sleep(0.3)
        assert len(flood.running) == 13
        for _ in range(2):
            quiet = other.ask("quiet")
            await other.asking
            assert quiet.job.worker
            assert not quiet.attempt.held_since


async def test_what_another_version_has_told_keeps_no_request_from_being_placed(redis: "Redis", wire: Wire) -> None:
    """The fleet is being upgraded: what is understood counts, as an account with a number more."""
    await worker(redis, 4)
    now = f"{clock.now():.3f}"
    odd = {
        "v9": "1",
        "v0": "x",
        "": "1",
        "tx": "1 2 3",
        "t0old": f"1 1 {now} 7",
        "b": "1",
        f"{now}": b"\xff",
        "c": f"{now} \xc1",
    }
    await redis.hset(KEYS.service("m"), mapping=odd)  # type: ignore[misc]
    replica = Replica(wire, "one")
    async with beside(replica.dispatcher.placer.run()):
        replica.ask("one")
        await until(lambda: replica.running)
    accounts = replica.dispatcher.placer.shares.of(replica.running[0]).accounts
    assert Flow(0, TenantId("old")) in accounts


async def test_a_tenant_alone_may_fill_seats_and_queue(redis: "Redis", wire: Wire) -> None:
    await worker(redis, 4)
    alone = Replica(wire, "alone", 3)
    async with beside(alone.dispatcher.placer.run()):
        requests = [alone.ask("alone") for _ in range(9)]
        await until(lambda: len(alone.running) == 7)
        assert not any(f.job.behind for f in requests)


async def test_what_holds_all_seats_steps_aside_for_a_tenant_that_comes(redis: "Redis", wire: Wire) -> None:
    """The other tenant alone has taken all, seats and queue, at both replicas, and none of its requests ends."""
    await worker(redis, 8)
    one, two = Replica(wire, "one", 4), Replica(wire, "two", 4)
    async with beside(one.dispatcher.placer.run()), beside(two.dispatcher.placer.run()):
        flood = [one.ask("flood") for _ in range(6)] + [two.ask("flood") for _ in range(6)]
        await until(lambda: all(f.job.worker for f in flood))
        for f in flood:
            replica = one if f in one.running else two
            replica.dispatcher.deliver(Delta(f.job.request, 0, "x", [1]))
        comes = [two.ask("comes") for _ in range(2)]

        async def worker_obeys() -> None:
            """Releases the runs that nobody awaits any more."""
            while True:
                await asyncio.sleep(0.01)
                raw = await redis.hkeys(KEYS.reservations(flood[0].job.worker or "w1"))
                awaited_runs = {
                    f.job.run for f in (*one.dispatcher.in_flight.values(), *two.dispatcher.in_flight.values())
                }
                for run in (name.decode() for name in raw):
                    if run not in awaited_runs:
                        keys = KEYS.release(run, "w1", POOL)  # type: ignore[arg-type]
                        await wire.execute([("EVAL", RELEASE, len(keys), *keys, run, "ended", "w1")])

        async with beside(worker_obeys()):
            await until(lambda: all(f.job.worker for f in comes))
    displaced_requests = [f for f in flood if f.job.attempt]
    assert displaced_requests
    assert all(f.job.begun[0].tokens == [1] for f in displaced_requests)


async def test_what_a_request_really_cost_is_charged_and_told(redis: "Redis", wire: Wire) -> None:
    """An answer is far shorter than predicted: the next one is predicted like it."""
    await worker(redis, 8)
    a, b = Replica(wire, "a"), Replica(wire, "b")
    flow, step_s = Flow(1, TenantId("t")), 0.01 / 8 + 0.001
    async with beside(a.dispatcher.placer.run()), beside(b.dispatcher.placer.run()):
        first = a.ask("t", 2.0, tokens=200, prompt=1000)
        await a.asking
        service = a.dispatcher.placer.shares.of(first)
        assert abs(service.finish(flow) - (0.1 + 200 * step_s) / 2) < 1e-6
        await a.end(first, tokens=10)
        cost = (0.1 + 10 * step_s) / 2
        assert abs(service.finish(flow) - cost) < 1e-6
        await a.end(second := await _placed(a, a.ask("t", 2.0, tokens=200, prompt=1000)), tokens=10)
        assert second.charge is None
        request = await _placed(b, b.ask("t", 2.0))
        other = b.dispatcher.placer.shares.of(request)
        await until(lambda: other.finish(flow) >= 2 * cost - 1e-6)
    service_entry = await redis.hget(KEYS.service("m"), "t1t")
    assert service_entry is not None
    assert float(service_entry.split()[1]) == 2.0


async def test_a_request_that_is_never_placed_costs_nothing(redis: "Redis", wire: Wire) -> None:
    """No request is charged twice that is placed again."""
    await worker(redis, 1)
    replica = Replica(wire, "a", 0)
    async with beside(replica.dispatcher.placer.run()):
        first, second = replica.ask("t"), replica.ask("t")
        await until(lambda: first.job.worker)
        await until(lambda: second.attempt.held_since)
        charge = first.charge
        replica.dispatcher.lost(first)
        await until(lambda: first.job.attempt == 1)
        assert first.charge is charge
        replica.dispatcher.abandon([second.job.request])
        replica.dispatcher.spent([second], [])
        assert second.charge is None


async def told(redis: "Redis", tenant: str) -> None:
    """Waits until its replica has told of it."""
    while not await redis.hexists(KEYS.service("m"), f"t1{tenant}"):
        await asyncio.sleep(0.02)


async def _placed(replica: Replica, inflight: InFlight) -> InFlight:
    await replica.asking
    return inflight
