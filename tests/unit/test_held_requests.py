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

POOL = PoolId("decode-pool-a")


def test_of_very_many_adapters_lines_a_round_tries_some_and_each_has_its_turn() -> None:
    """A round of sixteen hundred prompts was more than a script of Redis can look up: it failed each time."""
    pools, nobody = {POOL: Pool(model="m", engine="mock")}, dict[RequestId, InFlight]()
    no_redis: Any = None
    held = HeldRequests(pools, 60.0, TenantShares(no_redis, Keys("x"), pools, nobody, HOME, ApiId("a")))
    for adapter in range(250):
        for number in range(9):
            request = RequestId(f"{adapter}-{number}")
            job = Job(request, 0, ApiId("a"), [1], Sampling(max_tokens=5), time.time() + 60, adapter=f"{adapter}@1")
            held.push(InFlight(job, ((POOL,),), EventQueue(), RoutingHints()))
    tried: list[str] = []
    for _ in range(32):
        heads = held.take(lambda _: True).heads
        assert len(heads) <= 64
        tried += {inflight.adapter_name for inflight in heads}
        for inflight in heads:
            held.push(inflight)
    assert len(set(tried)) == 250
    assert len(tried) <= 256
