"""A round of placement over a pool with many workers decides as one that looks at each of them."""

from random import Random

import pytest
from msgspec.structs import replace

from app.dispatch.fleet.loads import ENTRY
from app.dispatch.fleet.pool_fleet import PoolFleet, PoolView
from app.dispatch.inflight import InFlight, RoutingHints
from app.dispatch.placing.placement_round import PlacementRound
from app.errors import NoWorker, RequestError, Saturated
from app.ids import WorkerId
from app.kv.groups import grids_of
from app.messages.job import Grammar, Sampling
from app.messages.lease import Lease, Load, Speeds
from app.routing.candidates import Matches, PlaceLimits
from tests import leases as made_up
from tests.jobs import POOL, in_flight, job
from tests.models import mock
from tests.present import present

BLOCK, COUNT = 16, 60
POOLS = {POOL: mock(block_size=BLOCK)}


def leases(random: Random) -> dict[WorkerId, Lease | None]:
    """Some hold answers to formats, some have an adapter, some drain, some give no seeds."""
    lease_by_worker: dict[WorkerId, Lease | None] = {}
    for number in range(COUNT):
        worker = made_up.worker(
            f"w{number}", total_blocks=400, max_running=random.randint(2, 6),
            grammars=["json"] if random.random() < 0.3 else [], seeds=random.random() < 0.5,
            adapters=["sql@1"] if random.random() < 0.2 else [],
        )  # fmt: skip
        speeds = Speeds(random.uniform(1000, 20_000), 2.0, 0.3, 5.0)
        load = Load(used_blocks=random.randint(0, 400), aside_most=2)
        lease_by_worker[worker.id] = Lease(worker, load, speeds, draining=random.random() < 0.1)
    return lease_by_worker


def packed(places: dict[bytes, bytes]) -> bytes:
    """One field of `loads:<pool>`, as scripts write it."""
    return b"".join(bytes([len(name)]) + name + entry for name, entry in places.items())


def entries(random: Random) -> dict[bytes, bytes]:
    def entry() -> bytes:
        requests, blocks, tokens = random.randint(0, 8), random.randint(0, 300), random.randint(0, 3000)
        return ENTRY.pack(requests, blocks, tokens, 1, 0, 0, 0, random.uniform(1e12, 1.7e12))

    return {f"{number}".encode(): packed({f"w{number}".encode(): entry()}) for number in range(COUNT)}


def matches(random: Random) -> Matches:
    everybody = frozenset(i for i in range(COUNT) if random.random() < 0.7)
    some = frozenset(random.sample(sorted(everybody), 3))
    beginnings = [(25, frozenset(random.sample(range(COUNT), 3))), (5, everybody)] if random.random() < 0.5 else []
    return Matches(
        [(random.randint(20, 30), some), (10, everybody)], {random.randrange(COUNT): 15}, beginnings=beginnings
    )


def asked(random: Random) -> InFlight:
    sampling = Sampling(
        64,
        temperature=1.0,
        seed=1 if random.random() < 0.3 else None,
        grammar=Grammar("json", "{}") if random.random() < 0.3 else None,
    )
    adapter = "sql@1" if random.random() < 0.3 else None
    session = "session" if random.random() < 0.5 else None
    return in_flight(job([7] * 500, sampling=sampling, adapter=adapter), hints=RoutingHints(session=session))


@pytest.mark.parametrize("seed", range(40))
async def test_it_costs_as_little_as_the_best_of_all(seed: int) -> None:
    """Any needs of the request are covered, also that nobody meets them or all are full; through a round of ten."""
    random = Random(seed)
    fleet, limits = PoolFleet(), PlaceLimits(max_queued=random.randint(0, 3))
    fleet.set(leases(random))
    fleet.candidates(entries(random), limits)
    candidates = fleet.candidates(entries(random), limits)  # the second time the lines follow
    requests, all_matches = [asked(random) for _ in range(10)], [matches(random) for _ in range(10)]
    shortly, whole = (PlacementRound(requests, POOLS, grids_of(POOLS)) for _ in range(2))
    view = PoolView(candidates, all_matches, fleet.indices, fleet.homes, fleet.lines, fleet.speeds, lately=True)
    shortly.views = {POOL: view}
    assert view.lines is not None
    for inflight in requests:
        # The fleet of the same moment, of which each is looked at: the client wants to know what it cost.
        whole.views = {POOL: replace(view, candidates=view.candidates.copy(), lines=None)}
        whole.now, whole._placed = shortly.now, shortly._placed.copy()
        outcomes = []
        for round_ in (whole, shortly):
            try:
                (decision,) = round_.decide(inflight, Random(seed), 0).values()
                own = next(c for o, c in decision.scored if o.candidate.lease.worker.id == decision.placement.worker)
                outcomes.append(round(own.total, 9))
            except (NoWorker, Saturated, RequestError) as exc:
                outcomes.append(type(exc))
        assert outcomes[0] == outcomes[1]


def test_where_one_of_many_loads_from_tiers_each_is_looked_at() -> None:
    """Whether its pool has `tiers`, or the engine's own arguments."""
    random, fleet = Random(1), PoolFleet()
    lease_by_worker = leases(random)
    lease = present(lease_by_worker[WorkerId("w7")])
    for size, has_tiers in ((0, False), (1, True)):
        fleet.set(lease_by_worker | {WorkerId("w7"): made_up.changed(lease, tier_block_bytes=size)})
        fleet.candidates(entries(random), PlaceLimits(max_queued=1))
        assert (fleet.has_tiers, fleet.lines is None) == (has_tiers, has_tiers)


def test_a_worker_where_nothing_has_ended_yet_is_expected_to_hold_requests_as_long_as_the_others() -> None:
    fleet, seconds = PoolFleet(), {"a": 2.0, "b": 4.0, "new": 0.0}
    fleet.set({WorkerId(name): made_up.lease(name, speeds=Speeds(request_s=s)) for name, s in seconds.items()})
    assert [c.lease.speeds.request_s for c in fleet.candidates({}, PlaceLimits(max_queued=1))] == [2.0, 4.0, 3.0]
