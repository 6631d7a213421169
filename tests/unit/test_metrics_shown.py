"""Concurrent requests for the metrics while they are read."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client.registry import REGISTRY

from app.api.operations.deployment_metrics import DeploymentMetrics
from app.errors import StoreDown


async def test_those_who_ask_at_the_same_time_share_one_reading() -> None:
    """The requests need no key, and each took 8 ms: some hundreds held the event loop for seconds."""
    reads, go_on = list[int](), asyncio.Event()

    async def live() -> Any:
        reads.append(1)
        await go_on.wait()
        raise StoreDown

    state = cast(Any, SimpleNamespace(batch_store=SimpleNamespace(live=live)))
    metrics = DeploymentMetrics()
    try:
        tasks = [asyncio.create_task(metrics.shown(state)) for _ in range(5)]
        await asyncio.sleep(0)
        tasks.pop().cancel()
        go_on.set()
        assert len(set(await asyncio.gather(*tasks))) == 1
        assert len(reads) == 1
        await metrics.shown(state)
        assert len(reads) == 2, "nobody gets old ones"
    finally:
        REGISTRY.unregister(metrics)
