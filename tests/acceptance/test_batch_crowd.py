"""More seats than batch workers can serve, and engines that never answer: batches are begun and ended all the same."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from app.batch import paths as places
from app.batch.batch_store import BatchStore
from app.batch.fair_share import PARTS
from app.batch.records import BatchLine, BatchOrder, Part
from app.batch.storage import Storage
from app.ids import BatchId, FileId, PoolId, WorkerId, new_batch_id
from app.keys import Keys
from app.messages.lease import Lease, Worker
from app.messages.wire import encode
from tests.batching import line, submitted
from tests.serving import client_of
from tests.stack import Stack, mock_pool, redis_server, stack, wait_until
from tests.wires import connected

POOL = "decode-pool-a"
KEYS = Keys("xylem")
SEATS = 8192  # of which batches would fill all, with 194 parts
URL: Any = "/v1/completions"
BODY = {"model": "mock", "prompt": "hello", "max_tokens": 4}


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[Stack]:
    """One batch worker; an engine's worker that lives as far as anybody can see, and answers nothing."""
    with redis_server(tmp_path) as url, stack(url, tmp_path, {POOL: mock_pool()}) as s:
        own = Worker(WorkerId("w"), PoolId(POOL), "both", "here", 1, 32, 1_000_000, SEATS, 4096, kv_events=True)
        with Redis.from_url(url) as redis:
            redis.set(KEYS.worker(own.id), encode(Lease(own)), ex=3600)
            redis.hset(KEYS.pool(own.pool), own.id, "1,1")
        s.api()
        s.worker("batch", "batch")
        wait_until(s.ready, "the API listens")
        yield s
        assert "Traceback" not in s.log("batch")


async def in_progress(s: Stack, parts: int) -> BatchId:
    """A batch of so many parts of one line each."""
    now, storage = int(time.time()), Storage(str(s.directory / "files"))
    order = BatchOrder(new_batch_id(), "", URL, FileId("file-1"), "24h", now, now + 86_400)
    for i in range(parts):
        storage.put(places.part(order.id, i), encode(Part([BatchLine(i + 1, f"id-{i}", json.dumps(BODY).encode())])))
    async with connected(s.redis_url) as (_, wire):
        batch_store = BatchStore(wire, KEYS, 3600)
        await batch_store.create(order)
        await batch_store.set_parts(order.id, parts)
        fields = {"status": "in_progress", "in_progress_at": now, "model": "mock", "total": parts, "parts": parts}
        assert await batch_store.set_status(order.id, ["validating"], fields)
    return order.id


@pytest.mark.timeout(240)
async def test_beginning_and_finishing_wait_behind_no_part(crowd: Stack) -> None:
    """No more parts are sent than the one batch worker takes, however many seats the engines have."""
    batch = await in_progress(crowd, 200)
    openai = client_of(crowd.url)
    with Redis.from_url(crowd.redis_url) as redis, openai as client:

        def taken() -> int:
            return sum(b"||" not in value for value in redis.hvals(KEYS.taken(batch)))

        wait_until(lambda: taken() == PARTS, "the batch worker has all that it takes", 60)
        batch_id = submitted(client, [line("one", URL, **BODY)], URL).id

        def status_is(batch: str, status: str) -> None:
            wait_until(lambda: client.batches.retrieve(batch).status == status, f"{batch} is {status}", 60)

        status_is(batch_id, "in_progress")
        client.batches.cancel(batch_id)
        status_is(batch_id, "cancelled")
        assert (taken(), redis.hlen(KEYS.taken(batch))) == (PARTS, PARTS)
        client.batches.cancel(batch)
        status_is(batch, "cancelled")
        errors = client.files.content(client.batches.retrieve(batch).error_file_id or "").text.splitlines()
        assert len(errors) == 200
