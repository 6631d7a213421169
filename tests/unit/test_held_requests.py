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
    for number in range(9):
        push(held, f"other-{number}", pool=OTHER)
    tried: list[str] = []
    for _ in range(32):
        heads = held.take(lambda _: True).heads
        others = {inflight.job.request for inflight in heads if inflight.groups == ((OTHER,),)}
        assert len(others) == 8
        assert len(heads) <= 64 + 8
        tried += {inflight.adapter_name for inflight in heads if inflight.adapter_name}
        for inflight in heads:
            held.push(inflight)
    assert len(set(tried)) == 250
    assert len(tried) <= 256
