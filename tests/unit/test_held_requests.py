"""Which held requests are tried next."""

import time
from typing import Any

from app.dispatch.event_queue import EventQueue
from app.dispatch.held_requests import HeldRequests
from app.dispatch.inflight import InFlight, RoutingHints
from app.dispatch.tenant_shares import TenantShares
from app.ids import HOME, ApiId, PoolId, RequestId
from app.keys import Keys
from app.messages import Job, Sampling
from app.pools import Pool

POOL, OTHER = PoolId("decode-pool-a"), PoolId("decode-pool-b")


def push(held: HeldRequests, request: str, adapter: str | None = None, pool: PoolId = POOL) -> None:
    sampling = Sampling(max_tokens=5)
    job = Job(RequestId(request), 0, ApiId("a"), [1], sampling, time.time() + 60, adapter=adapter)
    held.push(InFlight(job, ((pool,),), EventQueue(), RoutingHints()))


def test_of_very_many_adapters_lines_a_round_tries_some_and_each_has_its_turn() -> None:
    """A round of sixteen hundred prompts was more than a script of Redis can look up: it failed each time.

    Another model's line is tried in each round: its workers may be free.
    """
    pools = {POOL: Pool(model="m", engine="mock"), OTHER: Pool(model="n", engine="mock")}
    no_redis: Any = None
    held = HeldRequests(pools, 60.0, TenantShares(no_redis, Keys("x"), pools, {}, HOME, ApiId("a")))
    for adapter in range(250):
        for number in range(9):
            push(held, f"{adapter}-{number}", f"{adapter}@1")
    free = [RequestId(f"free-{number}") for number in range(100)]  # of the model itself, which finds room
    for request in free:
        push(held, request)
    for number in range(9):
        push(held, f"other-{number}", pool=OTHER)
    tried: list[str] = []
    for number in range(40):
        heads = held.take(lambda _: True).heads
        assert len(heads) <= (600 if number < 5 else 64 + 8 + 8 + 8)  # at first nobody knows which lines find room
        if number >= 5:
            tried += {inflight.adapter_name for inflight in heads if inflight.adapter_name}
        assert sum(inflight.groups == ((OTHER,),) for inflight in heads) == 8
        found = [inflight for inflight in heads if inflight.job.request in free]
        assert len(found) == min(8, len(free)) or number < 5
        for inflight in heads:
            if inflight in found:
                free.remove(inflight.job.request)
            else:
                held.push(inflight)
    assert not free
    assert len(set(tried)) == 250
