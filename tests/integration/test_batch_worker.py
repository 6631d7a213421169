"""Tests batch workers that act twice, late, or without permission, with a real Redis and a real folder."""

import asyncio
import dataclasses
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import orjson
import pytest
import yaml
from openai.types import Batch as OpenAIBatch
from redis import Redis

from app.batch import paths as places
from app.batch.batch_store import MOST_BREAKS, BatchLoad, PartClaim
from app.batch.file_store import FileStore
from app.batch.handling_names import of_part
from app.batch.next_step import due
from app.batch.records import BatchLine, BatchOrder, Part, Result, StoredFile, decode_results
from app.batch.storage import Storage
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.models.models import Model
from app.dispatch.runtime import Deployment
from app.errors import BudgetUsed, NoWorker, RequestError, StorageDown, StoreDown, XylemError
from app.ids import BatchId, FileId, KeyId, RequestId, new_batch_id
from app.keys import Keys
from app.messages.job import Sampling
from app.messages.wire import encode
from app.openai.batch_schemas import as_object
from app.settings import load_settings
from app.tenants.cost import Used
from app.tenants.limit_table import UNLIMITED, Budget, TenantLimits
from app.tenants.records import ApiKey
from tests.stack import mock_pool, wait_until
from workers.batch.batch_worker import BatchWorker
from workers.batch.part_runner import PartRunner
from workers.batch.suspect_lines import MOST_LETHAL

KEYS = Keys("xylem")


@pytest.fixture
def redis(store_url: str) -> Iterator[Redis]:
    client = Redis.from_url(store_url)
    client.flushall()
    client.set(KEYS.batch_leader(), "nobody")  # what is due is done by the tests
    yield client
    client.close()


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


@pytest.fixture
def batch_workers(redis: Redis, store_url: str, tmp_path: Path) -> Iterator[list[BatchWorker]]:
    pools = tmp_path / "pools.yaml"
    pools.write_text(yaml.safe_dump({"pools": {"decode-pool-a": mock_pool()}}))
    deployment = Deployment.read(load_settings(redis_url=store_url, files=str(tmp_path), pools_file=str(pools)))
    two = [BatchWorker(deployment), BatchWorker(deployment)]
    for batch_worker in two:
        batch_worker.start()
    yield two
    for batch_worker in two:
        batch_worker.close()


def created(batch_worker: BatchWorker, key: str = "", within: TenantLimits = UNLIMITED) -> BatchId:
    now, id_ = int(time.time()), new_batch_id()
    order = BatchOrder(
        id_, KeyId(key), "/v1/completions", FileId("file-1"), "24h", now, now + 86_400, within=within
    )  # fmt: skip
    batch_worker.call(batch_worker._batch_store.create(order))
    return order.id


def answer_next(batch_worker: BatchWorker, batch: BatchId) -> None:
    """The next part is handed out, and answered."""
    (ticket,) = batch_worker.call(batch_worker._batch_store.hand_out({batch: 1}))
    batch_worker.answer(batch, ticket.part, ticket.number)


def in_progress(batch_worker: BatchWorker, storage: Storage, parts: int = 2, lines: int = 3, key: str = "") -> BatchId:
    batch = created(batch_worker, key)
    for part in range(parts):
        storage.put(places.part(batch, part), encode(Part([line(part * lines + i) for i in range(1, lines + 1)])))
    batch_worker.call(batch_worker._batch_store.set_parts(batch, parts))
    fields = {"status": "in_progress", "in_progress_at": int(time.time()), "total": parts * lines, "parts": parts}
    batch_worker.call(batch_worker._batch_store.set_status(batch, ["validating"], fields))
    return batch


def line(number: int) -> BatchLine:
    return BatchLine(number, f"id-{number}", b"{}")


def answered(number: int) -> Result:
    return Result(number, f"id-{number}", 200, "", b"{}", None, 1, 0, 1)


def finalizing(batch_worker: BatchWorker, storage: Storage) -> BatchId:
    """All its lines are answered."""
    batch = in_progress(batch_worker, storage)
    for part in range(2):
        storage.put(places.answers(batch, part), encode([answered(part * 3 + i) for i in range(1, 4)]))
    batch_worker.call(
        batch_worker._batch_store.set_status(batch, ["in_progress"], {"status": "finalizing", "ending": "completed"})
    )
    return batch


def validating(batch_worker: BatchWorker, storage: Storage, raw: bytes, within: TenantLimits = UNLIMITED) -> BatchId:
    """Makes a batch of that input file, which nobody has looked at yet."""
    batch = created(batch_worker, within=within)
    storage.put("files/file-1", raw)
    file_store = FileStore(batch_worker._batch_store._wire, KEYS)
    batch_worker.call(file_store.add(StoredFile(FileId("file-1"), "", "in", "batch", len(raw), 1)))
    return batch


def request(number: int) -> bytes:
    body = {"model": "mock", "prompt": "hello"}
    return orjson.dumps({"custom_id": f"id-{number}", "method": "POST", "url": "/v1/completions", "body": body})


def end(batch_worker: BatchWorker, batch: BatchId, ending: str) -> None:
    """Ends the batch as the leader or a client would have it."""
    if ending == "cancelled":
        batch_worker.call(batch_worker._batch_store.cancel(batch))
    else:
        batch_worker.call(
            batch_worker._batch_store.set_status(batch, ["validating"], {"status": "finalizing", "ending": "expired"})
        )
    batch_worker.batch_jobs.finish(batch)


def errors_of(storage: Storage, batch: BatchId) -> list[dict[str, Any]]:
    raw = storage.get(f"files/{places.file_of(batch, 'error')}") or b""
    return [orjson.loads(each) for each in raw.splitlines()]


def ids(storage: Storage, batch: BatchId) -> list[str]:
    raw = storage.get(f"files/{places.file_of(batch, 'output')}") or b""
    return sorted(orjson.loads(each)["custom_id"] for each in raw.splitlines())


def while_reading(
    batch_worker: BatchWorker, monkeypatch: pytest.MonkeyPatch, path: str, act: Callable[[], Any]
) -> list[Any]:
    """Calls `act` before it has what lies under `path`. What `act` returned is in the list then.

    An assertion inside `act` would be lost: the batch worker takes it for a break.
    """
    get, reads = batch_worker._storage.get, []
    results: list[Any] = []

    def slow(asked: str) -> bytes | None:
        if asked == path and not reads:
            reads.append(asked)
            results.append(act())
        return get(asked)

    monkeypatch.setattr(batch_worker._storage, "get", slow)
    return results


def done_but_not_said(ask: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def asked(*args: Any) -> Any:
        await ask(*args)
        raise StoreDown("the connection is lost")

    return asked


def test_a_worker_that_is_overtaken_while_finishing_leaves_the_files_as_they_are(
    redis: Redis, batch_workers: list[BatchWorker], storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files that it would have read are deleted by then."""
    slow, other = batch_workers
    batch = finalizing(slow, storage)

    def meanwhile() -> bool:
        redis.hset(KEYS.batch(batch), "holder_at", 0)
        other.batch_jobs.finish(batch)
        other.batch_jobs.finish(batch)
        return (Path(storage._root) / places.folder(batch)).exists()

    still_there = while_reading(slow, monkeypatch, places.answers(batch, 1), meanwhile)
    slow.batch_jobs.finish(batch)
    assert still_there == [False]
    assert ids(storage, batch) == [f"id-{i}" for i in range(1, 7)]
    record = slow.call(slow._batch_store.find(batch, None))
    assert (record.status, record.completed, record.failed, record.errors_file) == ("completed", 6, 0, None)


def test_a_batch_whose_task_comes_twice_is_finished_once(
    batch_workers: list[BatchWorker], storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_worker, batch = batch_workers[0], finalizing(batch_workers[0], storage)
    began: list[BatchId] = []
    assemble = batch_worker.batch_jobs._write_results
    monkeypatch.setattr(
        batch_worker.batch_jobs, "_write_results", lambda b, n: (began.append(b.order.id), assemble(b, n))
    )
    again = while_reading(
        batch_worker, monkeypatch, places.answers(batch, 1), lambda: batch_worker.batch_jobs.finish(batch)
    )
    batch_worker.batch_jobs.finish(batch)
    assert again == [None]
    assert began == [batch]
    assert len(ids(storage, batch)) == 6
    assert not batch_worker.batch_jobs.handling


def test_a_part_that_comes_twice_to_one_worker_is_answered_once(
    redis: Redis, batch_workers: list[BatchWorker], storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_worker, batch = batch_workers[0], in_progress(batch_workers[0], storage, parts=1)
    (ticket,) = batch_worker.call(batch_worker._batch_store.hand_out({batch: 1}))
    claims: list[PartClaim] = []
    run = PartRunner.run

    async def counted(part: PartRunner) -> None:
        claims.append(part.ticket)
        await run(part)

    def stopped() -> bool:
        """Does it come back at once when the part comes again? Then the batch is paused."""
        thread = threading.Thread(target=batch_worker.answer, args=(batch, ticket.part, ticket.number))
        thread.start()
        thread.join(5)
        redis.hset(KEYS.batch(batch), "paused", 1)
        time.sleep(1)
        return not thread.is_alive()

    monkeypatch.setattr(PartRunner, "run", counted)
    came_back = while_reading(batch_worker, monkeypatch, places.part(batch, 0), stopped)
    batch_worker.answer(batch, ticket.part, ticket.number)
    assert came_back == [True]
    assert claims == [ticket]


def test_a_worker_that_has_all_that_it_takes_gives_a_part_back_at_once(
    batch_workers: list[BatchWorker], storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other part could begin or finish in its place while it waited."""
    batch_worker, batch = batch_workers[0], in_progress(batch_workers[0], storage, parts=3)
    parts: list[int] = []

    async def answer(part: PartRunner, asked: BatchLine) -> Result:
        parts.append(part.ticket.part)
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(PartRunner, "_request", answer)
    monkeypatch.setattr("workers.batch.batch_worker.PARTS", 2)
    first, second, third = batch_worker.call(batch_worker._batch_store.hand_out({batch: 3}))
    threads = [threading.Thread(target=batch_worker.answer, args=(batch, t.part, t.number)) for t in (first, second)]
    for thread in threads:
        thread.start()
    wait_until(lambda: set(parts) == {0, 1}, "two parts are being answered")
    batch_worker.answer(batch, third.part, third.number)
    assert batch_worker.call(batch_worker._batch_store.loads([batch])) == [BatchLoad(1, 2, None)]
    batch_worker.stop_parts()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert batch_worker.call(batch_worker._batch_store.loads([batch])) == [BatchLoad(3, 0, None)]


@pytest.mark.parametrize("lasting", [BudgetUsed(), NoWorker()])
def test_a_part_whose_lines_wait_for_what_may_last_is_given_back(
    batch_workers: list[BatchWorker], storage: Storage, monkeypatch: pytest.MonkeyPatch, lasting: XylemError
) -> None:
    """Such parts kept all places of a batch worker, for the rest of a month. The lines beside it are answered."""
    batch_worker, batch = batch_workers[0], in_progress(batch_workers[0], storage, parts=1)
    line_numbers: list[int] = []

    async def answer(_: PartRunner, line: BatchLine) -> Result:
        line_numbers.append(line.number)
        if line_numbers.count(2) == 1 and line.number == 2:
            raise lasting
        return answered(line.number)

    monkeypatch.setattr(PartRunner, "_request", answer)
    monkeypatch.setattr("workers.batch.part_runner._RETRY_S", 0.01)
    for load in (BatchLoad(1, 0, None), BatchLoad(0, 0, None)):
        answer_next(batch_worker, batch)
        assert batch_worker.call(batch_worker._batch_store.loads([batch])) == [load]
    assert sorted(line_numbers) == [1, 2, 2, 3]
    record = batch_worker.call(batch_worker._batch_store.find(batch, None))
    assert (record.completed, record.failed) == (3, 0)


def test_a_line_that_names_no_model_is_for_the_only_one(
    redis: Redis, batch_workers: list[BatchWorker], storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The online endpoints do the same. The line's error says what is missing where there are more models."""
    batch_worker = batch_workers[0]
    raw = request(1).replace(b'"model":"mock",', b"")
    assert b"model" not in raw
    batch = validating(batch_worker, storage, request(0) + b"\n" + raw)
    batch_worker.batch_jobs.begin(batch)
    record = batch_worker.call(batch_worker._batch_store.find(batch, None))
    assert (record.status, record.model, record.total, record.failed) == ("in_progress", "mock", 2, 0)
    models = batch_worker.serving.models
    monkeypatch.setitem(models, "second", dataclasses.replace(models["mock"], name="second"))
    batch = validating(batch_worker, storage, raw)
    batch_worker.batch_jobs.begin(batch)
    record = batch_worker.call(batch_worker._batch_store.find(batch, None))
    assert (record.total, record.failed) == (1, 1)
    (error,) = decode_results(storage.get(places.broken(batch)) or b"")
    assert error.problem is not None
    assert (error.problem.message, error.problem.param) == ("'model' is missing.", "model")


def test_batches_that_are_validated_at_once_do_not_pass_their_limit_together(
    batch_workers: list[BatchWorker], storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows how many lines they have while they are validated."""
    slow, other = batch_workers
    raw, most = b"\n".join(map(request, range(3))), TenantLimits(batch_lines=5)
    first, second, third = (validating(slow, storage, raw, most) for _ in range(3))
    count = slow._batch_store.count_lines

    async def overtaken(*args: Any) -> bool:
        monkeypatch.undo()
        await asyncio.to_thread(other.batch_jobs.begin, second)
        return await count(*args)

    monkeypatch.setattr(slow._batch_store, "count_lines", overtaken)
    slow.batch_jobs.begin(first)
    batches = [slow.call(slow._batch_store.find(batch, None)) for batch in (first, second)]
    assert [batch.status for batch in batches] == ["failed", "in_progress"]
    (problem,) = batches[0].problems
    assert (problem.code, problem.message) == (
        "too_many_lines", "Your unfinished batches have at most 5 lines together.",
    )  # fmt: skip
    slow.call(slow._batch_store.set_status(second, ["in_progress"], {"completed": 1}))
    slow.batch_jobs.begin(third)
    assert slow.call(slow._batch_store.find(third, None)).status == "in_progress"


def test_a_lock_whose_reply_is_lost_is_released(
    batch_workers: list[BatchWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that stayed would keep the batch from being validated as long as that worker lives."""
    batch_worker, batch = batch_workers[0], created(batch_workers[0])
    with monkeypatch.context() as patch:
        patch.setattr(batch_worker._batch_store, "lock", done_but_not_said(batch_worker._batch_store.lock))
        batch_worker.batch_jobs.begin(batch)
    assert batch_worker.call(batch_worker._batch_store.loads([batch]))[0].holder is None
    assert batch_workers[1].call(
        batch_workers[1]._batch_store.lock(batch, "validating", batch_workers[1].serving.dispatcher.api)
    )


def test_an_answered_part_that_redis_has_forgotten_is_not_computed_again(
    batch_workers: list[BatchWorker], storage: Storage
) -> None:
    batch_worker, batch = batch_workers[0], in_progress(batch_workers[0], storage, parts=1)
    storage.put(places.answers(batch, 0), encode([answered(i) for i in range(1, 4)]))
    answer_next(batch_worker, batch)
    (load,) = batch_worker.call(batch_worker._batch_store.loads([batch]))
    assert (load.todo, load.taken) == (0, 0)
    assert batch_worker.call(batch_worker._batch_store.find(batch, None)).left == 3  # nothing was noted


def test_a_lock_released_during_a_report_stays_released(
    batch_workers: list[BatchWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_worker, batch = batch_workers[0], created(batch_workers[0])
    grasp = batch_worker._batch_store.lock

    results: list[bool] = []

    async def late(*args: Any) -> bool:
        batch_worker.batch_jobs.handling.clear()
        results.append(await grasp(*args))
        return results[-1]

    batch_worker.batch_jobs.handling[batch] = "validating"
    monkeypatch.setattr(batch_worker._batch_store, "lock", late)
    batch_worker.call(batch_worker._renew())
    assert results == [True]
    assert batch_worker.call(batch_worker._batch_store.loads([batch]))[0].holder is None


def test_a_worker_reports_its_parts_and_locks(redis: Redis, batch_workers: list[BatchWorker], storage: Storage) -> None:
    batch_worker, batch = batch_workers[0], in_progress(batch_workers[0], storage, parts=1)
    waiting = created(batch_worker)
    me = batch_worker.serving.dispatcher.api
    redis.set(KEYS.api(me), "1")  # a moment before it says so itself
    (ticket,) = batch_worker.call(batch_worker._batch_store.hand_out({batch: 1}))
    assert batch_worker.call(batch_worker._batch_store.claim_part(ticket, me))
    assert batch_worker.call(batch_worker._batch_store.lock(waiting, "validating", me))
    redis.hset(KEYS.taken(batch), "0", f"{ticket.number}|{me}|1")
    redis.hset(KEYS.batch(waiting), "holder_at", 1)
    record = batch_worker.call(batch_worker._batch_store.find(batch, None))
    batch_worker._parts.add(
        PartRunner(
            batch_worker.serving,
            batch_worker._batch_store,
            storage,
            ticket,
            record,
            batch_worker._limits,
            batch_worker._handling,
        )
    )
    batch_worker.batch_jobs.handling[waiting] = "validating"
    batch_worker.call(batch_worker._renew())
    assert batch_worker.call(batch_worker._batch_store.hand_out({batch: 0})) == []
    assert batch_worker.call(batch_worker._batch_store.loads([waiting]))[0].holder == me
    batch_worker._parts.clear()
    batch_worker.batch_jobs.handling.clear()


def test_one_batch_that_is_gone_hides_no_other_one(batch_workers: list[BatchWorker]) -> None:
    batch_worker, batch = batch_workers[0], created(batch_workers[0])
    missing_batches = {BatchId(f"batch_gone{i}"): "in_progress" for i in range(30)}
    batch_worker.batch_jobs.handling.update(missing_batches)  # type: ignore[arg-type]
    batch_worker.batch_jobs.handling[batch] = "in_progress"
    time.sleep(1.5)
    assert batch_worker.batch_jobs.handling[batch] == "validating"


def test_a_validation_that_ends_after_the_batch_leaves_nothing_behind(
    redis: Redis, batch_workers: list[BatchWorker], storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, other = batch_workers
    batch = validating(slow, storage, b"{}\n" * 3)

    def cancelled(path: str, data: bytes) -> None:
        other.call(other._batch_store.cancel(batch))
        other.batch_jobs.finish(batch)
        redis.hset(KEYS.batch(batch), "cancelled_at", 1)
        other.batch_jobs.finish(batch)
        put(path, data)

    put = slow._storage.put
    monkeypatch.setattr(slow._storage, "put", cancelled)
    slow.batch_jobs.begin(batch)
    assert slow.call(slow._batch_store.find(batch, None)).status == "cancelled"
    assert not (Path(storage._root) / places.folder(batch)).exists()
    assert not redis.exists(KEYS.todo(batch))


def breaking(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("nobody thought of that")


def test_a_batch_whose_validation_breaks_time_and_again_fails_with_a_reason(
    batch_workers: list[BatchWorker], storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever worker tries. What clients see of it is what OpenAI shows of a batch that failed."""
    batch = validating(batch_workers[0], storage, request(1))
    monkeypatch.setattr("workers.batch.batch_jobs.split_input", breaking)
    for i in range(MOST_BREAKS):
        assert batch_workers[0].call(batch_workers[0]._batch_store.find(batch, None)).status == "validating"
        batch_workers[i % 2].batch_jobs.begin(batch)
    record = batch_workers[0].call(batch_workers[0]._batch_store.find(batch, None))
    assert (record.status, record.failed_at is not None) == ("failed", True)
    assert due(record, BatchLoad(0, 0, None), time.time(), webhook=True) == "tell"
    openai_batch = OpenAIBatch.model_validate(as_object(record))
    assert openai_batch.errors is not None
    assert [(e.code, e.line, e.param) for e in openai_batch.errors.data or []] == [("internal_error", None, None)]


def test_a_batch_whose_end_breaks_time_and_again_fails_and_its_answers_stay_in_the_storage(
    redis: Redis, batch_workers: list[BatchWorker], storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The computed answers may be all that somebody has waited for."""
    batch_worker = batch_workers[0]
    batch = finalizing(batch_worker, storage)
    monkeypatch.setattr("workers.batch.batch_jobs.write_result_files", breaking)
    for _ in range(MOST_BREAKS):
        batch_worker.batch_jobs.finish(batch)
    record = batch_worker.call(batch_worker._batch_store.find(batch, None))
    assert (record.status, [p.code for p in record.problems]) == ("failed", ["internal_error"])
    redis.hset(KEYS.batch(batch), "failed_at", 1)
    batch_worker.batch_jobs.finish(batch)
    assert batch_worker.call(batch_worker._batch_store.find(batch, None)).cleaned
    assert (Path(storage._root) / places.answers(batch, 1)).exists()


def test_a_batch_that_cannot_be_cleaned_up_is_left_as_it_is(
    redis: Redis, batch_workers: list[BatchWorker], storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_worker = batch_workers[0]
    batch = finalizing(batch_worker, storage)
    batch_worker.batch_jobs.finish(batch)
    monkeypatch.setattr(batch_worker._storage, "delete", breaking)
    for _ in range(MOST_BREAKS):
        assert not batch_worker.call(batch_worker._batch_store.find(batch, None)).cleaned
        batch_worker.batch_jobs.finish(batch)
    record = batch_worker.call(batch_worker._batch_store.find(batch, None))
    assert (record.status, record.cleaned) == ("completed", True)


@pytest.mark.parametrize("away", [StorageDown("S3"), StoreDown("Redis"), InterruptedError()])
def test_a_storage_that_is_away_fails_no_batch(
    batch_workers: list[BatchWorker], storage: Storage, monkeypatch: pytest.MonkeyPatch, away: Exception
) -> None:
    def raising(*_: Any, **_named: Any) -> Any:
        raise away

    batch = validating(batch_workers[0], storage, request(1))
    with monkeypatch.context() as patch:
        patch.setattr("workers.batch.batch_jobs.split_input", raising)
        for _ in range(2 * MOST_BREAKS):
            batch_workers[0].batch_jobs.begin(batch)
    assert batch_workers[0].call(batch_workers[0]._batch_store.find(batch, None)).broke == 0
    batch_workers[0].batch_jobs.begin(batch)
    assert batch_workers[0].call(batch_workers[0]._batch_store.find(batch, None)).status == "in_progress"


def test_a_webhook_that_breaks_in_an_unforeseen_way_counts_as_not_told(
    batch_workers: list[BatchWorker], storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_worker = batch_workers[0]
    batch = finalizing(batch_worker, storage)
    batch_worker.batch_jobs.finish(batch)
    monkeypatch.setattr(batch_worker.batch_jobs, "_settings", load_settings(webhook_url="http://127.0.0.1:1/"))
    monkeypatch.setattr("workers.batch.batch_jobs.tell", breaking)
    batch_worker.batch_jobs.notify(batch)

    def tried() -> Any:
        record = batch_worker.call(batch_worker._batch_store.find(batch, None))
        return record if record.tries else None

    record = wait_until(tried, "the try is noted")
    assert (record.told, record.tries) == (False, 1)
    assert record.tell_at > time.time()


def test_a_webhook_that_does_not_answer_holds_no_thread_and_is_called_once(
    batch_workers: list[BatchWorker], storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client's many small batches had all threads wait for it, and no batch of anybody went on."""
    batch_worker = batch_workers[0]
    batch = finalizing(batch_worker, storage)
    batch_worker.batch_jobs.finish(batch)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        monkeypatch.setattr(batch_worker.batch_jobs, "_settings", load_settings(webhook_url=url))
        for _ in range(2):  # the leader sends it again while it waits
            batch_worker.batch_jobs.notify(batch)
        server.settimeout(10)
        connection, _ = server.accept()
        server.settimeout(0.2)
        with pytest.raises(TimeoutError):
            server.accept()
        assert batch_worker.call(batch_worker._batch_store.find(batch, None)).tries == 0
        connection.close()
        wait_until(lambda: batch_worker.call(batch_worker._batch_store.find(batch, None)).tries == 1, "it is noted")


@pytest.mark.parametrize("broken", ["add_result", "decode_part"])
def test_a_part_that_breaks_time_and_again_is_given_up(
    batch_workers: list[BatchWorker], storage: Storage, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """One of its lines, and what it has of the others counts; or all of it, and nothing does."""
    batch_worker, batch = batch_workers[0], in_progress(batch_workers[0], storage, parts=1)
    note = batch_worker._batch_store.add_result

    async def answer(_: PartRunner, asked: BatchLine) -> Result:
        return answered(asked.number)

    async def noted(*args: Any) -> bool:
        return breaking() if args[-1].number == 2 else await note(*args)

    monkeypatch.setattr(PartRunner, "_request", answer)
    monkeypatch.setattr("workers.batch.part_runner._RETRY_S", 0.01)
    with monkeypatch.context() as patch:
        if broken == "add_result":
            patch.setattr(batch_worker._batch_store, "add_result", noted)
        else:
            patch.setattr("workers.batch.part_runner.decode_part", breaking)
        for _ in range(MOST_BREAKS):
            answer_next(batch_worker, batch)
    assert batch_worker.call(batch_worker._batch_store.loads([batch]))[0].todo == 0
    assert batch_worker.call(batch_worker._batch_store.complete(batch, {"status": "finalizing", "ending": "completed"}))
    batch_worker.batch_jobs.finish(batch)
    record = batch_worker.call(batch_worker._batch_store.find(batch, None))
    lost_lines = {2} if broken == "add_result" else {1, 2, 3}
    assert (record.status, record.completed, record.failed) == ("completed", 3 - len(lost_lines), len(lost_lines))
    codes = {error["error"]["line"]: error["error"]["code"] for error in errors_of(storage, batch)}
    assert codes == dict.fromkeys(lost_lines, "internal_error")


@pytest.mark.parametrize("ending", ["cancelled", "expired", "given up"])
def test_a_client_is_not_charged_for_lines_in_flight_with_which_a_batch_worker_died(
    redis: Redis, batch_workers: list[BatchWorker], storage: Storage, ending: str
) -> None:
    """Nobody answers the lines any more, and nobody gave back what their answers were expected to cost."""
    key = ApiKey("alice", b"12345678", 0.0, id=KeyId("key_1"), more=TenantLimits(budget=Budget(10_000)))
    redis.hset(KEYS.api_keys(), "alice", encode(key))
    dead, batch_worker = batch_workers
    batch = in_progress(batch_worker, storage, parts=1, key="key_1")
    order = batch_worker.call(batch_worker._batch_store.find(batch, None)).order
    batch_worker.call(dead._limits.known(order))
    plan = GenerationPlan("cmpl-", MagicMock(Model), [[1]], [Sampling(100)], timeout_s=1)
    for number in (1, 3):
        charge = dead._limits.charge(order, plan, number)
        assert charge is not None
        dead.call(charge.admit(RequestId("r"), Used("mock", 1), time.time() + 60))
    assert redis.hget(KEYS.budget("key_1"), "spent") == b"202"
    if ending == "given up":
        redis.set(KEYS.handling(of_part(batch, 0)), 9)
        redis.hset(KEYS.batch(batch), "lethal", MOST_LETHAL)
        answer_next(batch_worker, batch)
    else:
        fields = {"status": "finalizing", "ending": ending}
        batch_worker.call(batch_worker._batch_store.set_status(batch, ["in_progress"], fields))
        batch_worker.batch_jobs.finish(batch)
        assert [error["error"]["line"] for error in errors_of(storage, batch)] == [1, 2, 3]
    assert redis.hget(KEYS.budget("key_1"), "spent") == b"0"
    assert not redis.keys(KEYS.charged(RequestId("*")))


def test_a_part_whose_file_is_away_waits_for_it_however_often_it_is_tried(
    batch_workers: list[BatchWorker], storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that others share may be away, and look empty."""
    batch_worker, batch = batch_workers[0], in_progress(batch_workers[0], storage, parts=1)

    async def answer(_: PartRunner, asked: BatchLine) -> Result:
        return answered(asked.number)

    monkeypatch.setattr(PartRunner, "_request", answer)
    monkeypatch.setattr("workers.batch.part_runner._RETRY_S", 0.01)
    raw = storage.get(places.part(batch, 0)) or b""
    storage.delete(places.part(batch, 0))
    for tries in range(MOST_BREAKS + 2):
        if tries == MOST_BREAKS + 1:
            storage.put(places.part(batch, 0), raw)
        answer_next(batch_worker, batch)
    assert batch_worker.call(batch_worker._batch_store.complete(batch, {"status": "finalizing", "ending": "completed"}))
    batch_worker.batch_jobs.finish(batch)
    record = batch_worker.call(batch_worker._batch_store.find(batch, None))
    assert (record.status, record.completed, record.failed) == ("completed", 3, 0)


@pytest.mark.parametrize("ending", ["cancelled", "expired"])
def test_a_batch_that_ends_while_it_is_validated_has_all_its_lines_in_the_error_file(
    redis: Redis, batch_workers: list[BatchWorker], storage: Storage, ending: str
) -> None:
    """Lines that could not have been asked have their own error."""
    batch_worker = batch_workers[0]
    batch = validating(batch_worker, storage, b"\n".join([*(request(i) for i in range(100)), b"no JSON"]))
    end(batch_worker, batch, ending)
    record = batch_worker.call(batch_worker._batch_store.find(batch, None))
    assert (record.status, record.total, record.completed, record.failed) == (ending, 101, 0, 101)
    assert (record.output, record.errors_file) == (None, places.file_of(batch, "error"))
    errors = {error["error"]["line"]: error["error"]["code"] for error in errors_of(storage, batch)}
    assert errors == {i + 1: f"batch_{ending}" for i in range(100)} | {101: "invalid_json_line"}
    redis.hset(KEYS.batch(batch), f"{ending}_at", 1)
    batch_worker.batch_jobs.finish(batch)
    assert not (Path(storage._root) / places.folder(batch)).exists()


@pytest.mark.parametrize("ending", ["cancelled", "expired"])
def test_a_batch_of_a_file_that_cannot_be_read_ends_as_it_was_told_while_it_is_validated(
    batch_workers: list[BatchWorker], storage: Storage, ending: str
) -> None:
    """The file is empty, or gone."""
    batch_worker = batch_workers[0]
    for raw in (b"\n", None):
        batch = validating(batch_worker, storage, raw or b"")
        if raw is None:
            storage.delete("files/file-1")
        end(batch_worker, batch, ending)
        record = batch_worker.call(batch_worker._batch_store.find(batch, None))
        assert (record.status, record.total, record.output, record.errors_file) == (ending, 0, None, None)


def test_a_batch_that_is_cancelled_between_its_validation_and_its_beginning_loses_no_line(
    batch_workers: list[BatchWorker], storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_worker, other = batch_workers
    batch = validating(batch_worker, storage, request(1) + b"\n" + request(2))
    lay_out = batch_worker._batch_store.set_parts

    async def cancelled(*args: Any) -> bool:
        was_set = await lay_out(*args)
        await batch_worker._batch_store.cancel(batch)
        return was_set

    monkeypatch.setattr(batch_worker._batch_store, "set_parts", cancelled)
    batch_worker.batch_jobs.begin(batch)
    other.batch_jobs.finish(batch)
    record = batch_worker.call(batch_worker._batch_store.find(batch, None))
    assert (record.status, record.total) == ("cancelled", 2)
    assert len(errors_of(storage, batch)) == 2


@pytest.mark.parametrize(
    ("wrong", "named"),
    [({"endpoint": "/v1/images"}, "endpoint"), ({"metadata": {"n": 7}}, "metadata"), ({"window": "1w"}, "window")],
)
def test_a_task_that_asks_for_no_batch_begins_none(
    redis: Redis, batch_workers: list[BatchWorker], storage: Storage, wrong: dict[str, Any], named: str
) -> None:
    """One that could not be read again would be in the way of all others."""
    storage.put("inbox/a", b"{}")
    fields = {"path": "inbox/a", "endpoint": "/v1/completions", "window": "1h", "metadata": {"n": "7"}}
    with pytest.raises(RequestError, match=named):
        batch_workers[0].batch_jobs.submit(**fields | wrong, task="1")
    assert redis.zcard(KEYS.batches()) == 0
    batch = batch_workers[0].batch_jobs.submit(**fields, task="1")
    assert batch_workers[0].batch_jobs.submit(**fields, task="1") == batch
    assert redis.zcard(KEYS.batches()) == 1


def test_a_long_answer_does_not_lie_in_redis(
    redis: Redis, batch_workers: list[BatchWorker], storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty-four of them, with the logprobs of many choices, would be gigabytes; nor in the worker's memory."""
    batch_worker, batch = batch_workers[0], in_progress(batch_workers[0], storage, parts=1)
    long = b'"%s"' % (b"x" * 1_000_000)
    sizes: list[int] = []
    note = batch_worker._batch_store.add_result

    async def answer(_: PartRunner, asked: BatchLine) -> Result:
        return Result(asked.number, asked.custom_id, 200, f"cmpl-{asked.number}", long if asked.number > 1 else b"1")

    async def measured(*args: Any) -> bool:
        sizes.append(len(encode(args[-1])))
        return await note(*args)

    monkeypatch.setattr(PartRunner, "_request", answer)
    monkeypatch.setattr(batch_worker._batch_store, "add_result", measured)
    answer_next(batch_worker, batch)
    assert len(sizes) == 3
    assert max(sizes) < 1000
    assert storage.size(places.answers(batch, 0)) < 1000
    batch_worker.call(
        batch_worker._batch_store.set_status(batch, ["in_progress"], {"status": "finalizing", "ending": "completed"})
    )
    batch_worker.batch_jobs.finish(batch)
    raw = (storage.get(f"files/{places.file_of(batch, 'output')}") or b"").splitlines()
    bodies = [orjson.loads(each)["response"]["body"] for each in raw]
    assert bodies == [1, orjson.loads(long), orjson.loads(long)]


def test_a_worker_ends_also_when_its_last_task_has_just_ended(redis: Redis, store_url: str, tmp_path: Path) -> None:
    deployment = Deployment(load_settings(redis_url=store_url, files=str(tmp_path)), {}, {})
    for _ in range(5):
        batch_worker = BatchWorker(deployment)
        batch_worker.start()

        async def both(batch_worker: BatchWorker = batch_worker) -> None:
            await asyncio.sleep(0.05)
            batch_worker._leader.soon()  # as a task does at its end
            batch_worker._background[0].cancel()
            await asyncio.wait([batch_worker._background[0]], timeout=2)

        batch_worker.call(both())
        assert batch_worker._background[0].cancelled()
        batch_worker.close()
