"""Tasks that submit batches are ordinary Celery tasks, with a place for results: `.get()`, groups and chords work."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import httpx
import pytest
from celery import Celery, chord, group, uuid
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult
from openai import OpenAI

from app.ids import submitted_by
from tests.batching import CHAT, ended, line
from tests.chaos.fleet import TEMPLATE, Fleet
from tests.own_celery import QUEUE, own_app
from tests.stack import PYTHON, mock_pool, stop, wait_until

POOL, LINES, WAIT_S = "decode-pool-a", 5, 60
SLOW, ABSENT = "slow-pool", "absent-pool"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    pools = {
        POOL: mock_pool(speedup=float("inf")) | {"chat_template": str(TEMPLATE)},
        ABSENT: mock_pool(model="absent") | {"chat_template": str(TEMPLATE)},
        SLOW: mock_pool(model="slow", step_ms=50.0) | {"chat_template": str(TEMPLATE)},
    }
    fleet = Fleet(tmp_path_factory.mktemp("results") / "fleet", pools, apis=1, workers=1)
    fleet.stack.env["XYLEM_RESULT_URL"] = fleet.stack.redis_url
    with fleet as f:
        f.stack.worker("batch", "batch")
        yield f


@pytest.fixture(scope="module")
def own(fleet: Fleet) -> Iterator[Celery]:
    """A user's application, and its worker for the bodies of chords."""
    url, prefix = fleet.stack.redis_url, f"{fleet.stack.deployment}:"
    command = [PYTHON, "-m", "celery", "-A", "tests.own_celery", "worker", "-Q", "own", "-P", "solo"]
    worker = fleet.stack.spawn("own", *command, OWN_REDIS=url, OWN_PREFIX=prefix)
    yield own_app(url, prefix)
    stop(worker)


@pytest.fixture(scope="module")
def client(fleet: Fleet) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{fleet.urls()[0]}/v1", api_key="none", timeout=60) as c:
        yield c


def put(fleet: Fleet, name: str, lines: int = LINES, **body: Any) -> str:
    """A file of requests, in the storage."""
    request_body = {"model": "mock", "messages": [{"role": "user", "content": "a secret"}], "max_tokens": 4} | body
    path = fleet.directory / "files/inbox" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(line(f"id-{i}", **request_body)) for i in range(lines)))
    return f"inbox/{name}"


def submitting(own: Celery, path: str, **kwargs: Any) -> Any:
    return own.signature("app.tasks.batch.submit", args=[path, CHAT], kwargs=kwargs)


@contextmanager
def captured(own: Celery) -> Iterator[list[dict[str, Any]]]:
    """All of Celery's events meanwhile, as Flower gets them."""
    events: list[dict[str, Any]] = []
    receiver: Any = None

    def capture() -> None:
        nonlocal receiver
        with own.connection_for_read() as connection:
            receiver = own.events.Receiver(connection, handlers={"*": events.append})
            receiver.capture(limit=None, timeout=WAIT_S)

    thread = Thread(target=capture)
    thread.start()
    wait_until(lambda: events, "the first event comes", 30)
    try:
        yield events
    finally:
        receiver.should_stop = True
        thread.join()


def test_a_task_and_a_group_give_the_ids_of_their_batches(fleet: Fleet, client: OpenAI) -> None:
    """The application is that of the deployment itself, as docs/guide/batches.md shows it."""
    paths = [put(fleet, name) for name in ("a", "b", "c")]
    out = fleet.directory / "ids.json"
    code = f"""
import json
from celery import group
from app.celery import app
from app.tasks.batch import submit

one = submit.delay({paths[0]!r}, "{CHAT}").get(timeout={WAIT_S})
others = group(submit.s(path, "{CHAT}") for path in {paths[1:]!r}).apply_async().get(timeout={WAIT_S})
open({str(out)!r}, "w").write(json.dumps([one, *others]))
"""
    assert fleet.stack.spawn("ids", PYTHON, "-c", code).wait(WAIT_S) == 0, fleet.stack.log("ids")
    ids = json.loads(out.read_text())
    assert len(set(ids)) == 3
    assert {ended(client, client.batches.retrieve(id_)).status for id_ in ids} == {"completed"}


def test_a_task_that_asks_for_them_gives_the_answers(fleet: Fleet, own: Celery, client: OpenAI) -> None:
    end = submitting(own, put(fleet, "answers"), answers=True).apply_async().get(timeout=WAIT_S)
    batch = client.batches.retrieve(end["id"])
    assert (end["status"], end["request_counts"]["completed"], end["left_out"]) == ("completed", LINES, 0)
    assert batch.output_file_id is not None
    raw = client.files.content(batch.output_file_id).text
    assert end["answers"] == [json.loads(one) for one in raw.splitlines()]
    assert end["output_file_id"] == batch.output_file_id


def test_answers_that_are_too_many_for_a_result_are_in_the_files_only(fleet: Fleet, own: Celery) -> None:
    path = put(fleet, "many", lines=150, max_tokens=2000, ignore_eos=True)
    end = submitting(own, path, answers=True).apply_async().get(timeout=WAIT_S)
    assert end["request_counts"]["completed"] == 150
    assert 0 < end["left_out"] < 150
    assert len(end["answers"]) + end["left_out"] == 150
    assert len(json.dumps(end)) < 1.5 * 2**20


def test_a_batch_that_fails_says_why(fleet: Fleet, own: Celery) -> None:
    path = fleet.directory / "files/inbox/bad"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    end = submitting(own, "inbox/bad", answers=True).apply_async().get(timeout=WAIT_S)
    assert (end["status"], end["answers"]) == ("failed", [])
    assert end["errors"][0]["message"]


def test_a_chord_gets_answers_and_ids(fleet: Fleet, own: Celery) -> None:
    """Its body runs when the last batch has ended for which somebody waits."""
    collect = own.signature("own.collect").set(queue=QUEUE)
    parts = [submitting(own, put(fleet, "x"), answers=True), submitting(own, put(fleet, "y"))]
    answers, id_ = chord(group(parts, app=own), app=own)(collect).get(timeout=WAIT_S)
    assert [one["custom_id"] for one in answers["answers"]] == [f"id-{i}" for i in range(LINES)]
    assert id_.startswith("batch_")


def test_a_task_that_comes_after_it_needs_a_queue(fleet: Fleet, own: Celery) -> None:
    """A batch worker sends it, and doesn't know where tasks of others are run."""
    collect = own.signature("own.collect")
    with pytest.raises(Exception, match=r"own\.collect comes after this task and has no queue"):
        chord(group([submitting(own, put(fleet, "x"))], app=own), app=own)(collect).get(timeout=WAIT_S)


def test_answers_are_in_no_event_and_in_no_log(fleet: Fleet, own: Celery, client: OpenAI) -> None:
    """Holds for the task that gives them, and for the one that gets them."""
    with captured(own) as events:
        collect = own.signature("own.collect").set(queue=QUEUE)
        part = submitting(own, put(fleet, "seen"), answers=True)
        ((end,),) = [chord(group([part], app=own), app=own)(collect).get(timeout=WAIT_S)]
        wait_until(lambda: any(e["type"] == "task-succeeded" and "answers" in e["result"] for e in events), "its event")
    texts = [one["response"]["body"]["choices"][0]["message"]["content"] for one in end["answers"]]
    record = json.dumps(events) + fleet.stack.log("batch")
    assert end["id"] in record
    assert all(texts)
    assert not [text for text in [*texts, "secret"] if text in record]


@pytest.mark.parametrize("terminate", [False, True])
def test_a_revoked_task_cancels_its_batch_and_whoever_waits_knows(
    fleet: Fleet, own: Celery, client: OpenAI, terminate: bool
) -> None:
    """Its lines on the engine end, too."""
    path = put(fleet, "slow", model="slow", max_tokens=2000, ignore_eos=True)
    task: AsyncResult = submitting(own, path, answers=True).apply_async()
    id_ = submitted_by(task.id)
    wait_until(lambda: status(client, id_) == "in_progress", "its lines run", WAIT_S)
    own.control.revoke(task.id, terminate=terminate)
    assert ended(client, client.batches.retrieve(id_)).status == "cancelled"
    with pytest.raises(TaskRevokedError):
        task.get(timeout=WAIT_S)


def test_a_task_that_is_revoked_before_it_is_taken_submits_nothing(fleet: Fleet, own: Celery, client: OpenAI) -> None:
    task_id = uuid()
    assert own.control.revoke(task_id, reply=True, timeout=5)
    with pytest.raises(TaskRevokedError):
        submitting(own, put(fleet, "never")).apply_async(task_id=task_id).get(timeout=WAIT_S)
    assert status(client, submitted_by(task_id)) == ""


def test_flowers_terminate_cancels_a_batch_that_waits_for_an_engine(fleet: Fleet, own: Celery, client: OpenAI) -> None:
    stop(fleet.stack.names[f"{ABSENT}-0"])
    url, flower = fleet.stack.flower(FLOWER_UNAUTHENTICATED_API="1")
    try:
        path = put(fleet, "waits", model="absent")
        task: AsyncResult = submitting(own, path, answers=True).apply_async()
        id_ = submitted_by(task.id)
        wait_until(lambda: status(client, id_) == "in_progress", "it waits", WAIT_S)
        terminate = f"{url}/api/task/revoke/{task.id}"
        assert httpx.post(terminate, params={"terminate": "true"}, timeout=10).status_code == 200
        assert ended(client, client.batches.retrieve(id_)).status == "cancelled"
        with pytest.raises(TaskRevokedError):
            task.get(timeout=WAIT_S)
    finally:
        stop(flower)


def test_a_task_that_is_revoked_after_it_gave_the_id_cancels_its_batch(
    fleet: Fleet, own: Celery, client: OpenAI
) -> None:
    path = put(fleet, "slow", model="slow", max_tokens=2000, ignore_eos=True)
    task: AsyncResult = submitting(own, path).apply_async()
    id_ = task.get(timeout=WAIT_S)
    own.control.revoke(task.id)
    assert ended(client, client.batches.retrieve(id_)).status == "cancelled"


def status(client: OpenAI, batch: str) -> str:
    return {each.id: each.status for each in client.batches.list(limit=50)}.get(batch, "")


def test_results_end_with_nothing_left_to_be_sent(fleet: Fleet, client: OpenAI) -> None:
    """Each batch leaves the list of those that somebody looks at; results expire."""
    redis, prefix = fleet.stack.redis, fleet.stack.deployment

    def over() -> bool:
        return not redis.zcard(f"{prefix}:batches")

    wait_until(over, "nothing is left to be done", 60, 0.5)
    names = list(redis.scan_iter(f"{prefix}:celery-task-meta-*"))
    assert names
    assert all(0 < redis.ttl(name) <= 86_400 for name in names)
