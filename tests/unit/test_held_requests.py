"""Choice of the held requests that are tried next."""

import time
from collections import Counter
from typing import Any

from app.dispatch.inflight import InFlight
from app.dispatch.placing.held_requests import HeldRequests
from app.dispatch.placing.tenant_shares import TenantShares
from app.errors import NoWorker
from app.ids import HOME, ApiId, PoolId, RequestId
from app.keys import Keys
from tests.jobs import in_flight, job
from tests.models import mock

POOL, OTHER = PoolId("decode-pool-a"), PoolId("decode-pool-b")


def push(held: HeldRequests, request: str, adapter: str | None = None, pool: PoolId = POOL) -> None:
    """Holds a request for lack of room, or, if it is for an adapter, because no worker has it."""
    again(held, in_flight(job(name=request, deadline=time.time() + 60, adapter=adapter), pool))


def again(held: HeldRequests, inflight: InFlight) -> None:
    held.push(inflight, NoWorker() if inflight.adapter_name.startswith("none") else None)


def test_of_very_many_lines_a_round_tries_some_and_each_has_its_turn() -> None:
    """A round of sixteen hundred prompts was more than a script of Redis can look up: it failed each time.

    Lines that find no worker leave others their places, and another model's line is tried in each round.
    """
    pools = {POOL: mock(), OTHER: mock(model="n")}
    no_redis: Any = None
    held_requests = HeldRequests(pools, 60.0, TenantShares(no_redis, Keys("x"), pools, {}, HOME, ApiId("a")))
    for adapter in range(250):
        for number in range(9):
            push(held_requests, f"{adapter}-{number}", f"none{adapter}@1")
    for adapter in range(100):
        for number in range(9):
            push(held_requests, f"full-{adapter}-{number}", f"full{adapter}@1")
    free = [RequestId(f"free-{number}") for number in range(100)]  # of the model itself, which finds room
    for request in free:
        push(held_requests, request)
    for number in range(9):
        push(held_requests, f"other-{number}", pool=OTHER)
    attempts = Counter[str]()
    for number in range(40):
        heads = held_requests.take(lambda _: True).heads
        assert len(heads) <= 512 + 64 + 8
        assert sum(inflight.groups == ((OTHER,),) for inflight in heads) == 8
        free_heads = [inflight for inflight in heads if inflight.job.request in free]
        assert bool(free_heads) == bool(free)
        if number > 0:  # by then it is known which lines find no worker
            attempts += Counter({inflight.adapter_name for inflight in heads if inflight.adapter_name})
        for inflight in heads:
            if inflight in free_heads:
                free.remove(inflight.job.request)
            else:
                again(held_requests, inflight)
    assert not free
    assert all(attempts[f"full{adapter}"] == 39 for adapter in range(100))
    tries = [attempts[f"none{adapter}"] for adapter in range(250)]
    assert 8 <= min(tries) <= max(tries) <= 11
