"""The Celery messages that we write by hand are those that Celery writes."""

import json
from typing import Any

import msgspec
import pytest
from celery import Celery, chain
from hypothesis import given
from hypothesis import strategies as st
from kombu.transport.redis import Channel as RedisChannel
from kombu.utils.json import loads

from app.celery import app as our_app
from app.ids import PoolId, QueueName, RequestId, WorkerId
from app.keys import PRIORITY_SEP, PRIORITY_STEPS
from app.messages.celery_message import (
    DECODE_TASK,
    PICTURES_TASK,
    PREFILL_TASK,
    behind_pictures,
    next_message,
    priority_step,
    read_task_message,
    rendezvous,
    task_message,
    task_messages,
)
from app.messages.handoff import Handoff, KvHandle, Rendezvous
from app.messages.job import Stage
from tests.jobs import job


def stage(kind: Any, worker: str = "a", rank: int = 0, media: tuple[int, ...] = ()) -> Stage:
    return Stage(kind, PoolId(kind), WorkerId(worker), rank, media)


QUEUE = QueueName("decode-pool-a.12ab34cd")
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
REQUEST = RequestId("chatcmpl-0123456789abcdef01234567")


def plain_celery() -> Celery:
    app = Celery("xylem", broker="memory://")
    app.conf.update(task_serializer="json", task_ignore_result=True, result_backend=None)
    return app


def celerys_own(attempt: int, priority: int) -> dict[str, Any]:
    """The message that Celery's publisher and kombu's virtual transport (base of the Redis one) put into a queue."""
    app, options = plain_celery(), {"queue": QUEUE, "priority": priority, "retries": attempt, "ignore_result": True}
    with app.connection_for_write() as connection:
        app.send_task(DECODE_TASK, args=(REQUEST, attempt), task_id=REQUEST, connection=connection, **options)
        message: dict[str, Any] = connection.default_channel._get(QUEUE)
    return message


def decoded(message: dict[str, Any]) -> dict[str, Any]:
    """The message without delivery tag, sender and reply address; its body is as kombu reads it."""
    assert message["properties"].pop("delivery_tag")
    assert message["headers"].pop("origin")
    assert message["headers"]["ignore_result"], "or reply_to would matter"
    message["properties"].pop("reply_to")
    codec = RedisChannel.codecs[message["properties"]["body_encoding"]]
    return message | {"body": json.loads(codec.decode(message["body"]))}


@pytest.mark.parametrize("attempt", [0, 3])
@pytest.mark.parametrize("step", PRIORITY_STEPS)
def test_a_task_message_is_the_one_that_celery_publishes(attempt: int, step: int) -> None:
    """Key by key and value by value."""
    ours = json.loads(task_message(DECODE_TASK, QUEUE, REQUEST, attempt, step))
    theirs = json.loads(json.dumps(celerys_own(attempt, step)))
    assert decoded(ours) == decoded(theirs)


@pytest.mark.parametrize("then", [None, QueueName("decode-pool-a.2")])
def test_what_the_client_calls_its_request_is_shown_and_no_argument(then: QueueName | None) -> None:
    """Both tasks of a chain are shown so."""
    message = json.loads(task_message(PREFILL_TASK, QUEUE, REQUEST, 0, 0, then=then, x_request_id="mine"))
    args, kwargs, embed = decoded(message)["body"]
    assert (args, kwargs) == ([REQUEST, 0], {})
    reprs = [message["headers"]["kwargsrepr"], *(task["options"]["kwargsrepr"] for task in embed["chain"] or ())]
    assert reprs == ["{'x_request_id': 'mine'}"] * (2 if then else 1)


def test_the_sender_is_named_as_celery_names_it() -> None:
    """`pid@host`, which Flower shows."""
    ours = json.loads(task_message(DECODE_TASK, QUEUE, REQUEST, 0, 0))["headers"]["origin"]
    theirs = celerys_own(0, 0)["headers"]["origin"]
    assert ours.split("@")[1] == theirs.split("@")[1].removeprefix("gen")
    assert ours.split("@")[0].isdecimal()


def test_kombu_can_read_what_we_write() -> None:
    """kombu's own JSON dialect takes the bytes."""
    message = loads(task_message(DECODE_TASK, QUEUE, REQUEST, 1, 3))
    assert message["headers"]["task"] == DECODE_TASK


ids = st.text("0123456789abcdef-chtlmp", min_size=1, max_size=40).map(RequestId)


@given(ids, st.integers(0, 1000), st.sampled_from(PRIORITY_STEPS))
def test_reading_a_task_message_gives_what_was_written(request_id: RequestId, attempt: int, step: int) -> None:
    """A draining worker reads its own queue with it."""
    raw = task_message(DECODE_TASK, QUEUE, request_id, attempt, step)
    assert read_task_message(raw) == (None, request_id, attempt)


handoffs = st.none() | st.builds(Rendezvous, st.just("h"), st.integers(1, 65535), st.integers(0, 2**63 - 1))


@given(
    handoffs | st.builds(KvHandle, st.text(max_size=9), st.floats(0, 1e10), st.integers(0, 9), st.just({"a": [1, "b"]}))
)
def test_a_handoff_travels_as_the_first_argument(handoff: Handoff | None) -> None:
    raw = task_message(DECODE_TASK, QUEUE, REQUEST, 1, 3, handoff)
    assert read_task_message(raw) == (handoff, REQUEST, 1)


@given(st.integers(1, 16), st.data())
def test_a_room_says_which_rank_computes_the_prompt(ranks: int, data: st.DataObject) -> None:
    """SGLang takes the room modulo the number of its ranks."""
    rank = data.draw(st.integers(0, ranks - 1))
    of = job(name=REQUEST, stages=[stage("prefill", rank=rank), stage("decode")])
    [room] = {read_task_message(raw)[0] for raw in task_messages(of, 3, None, "host:1", ranks)}
    assert isinstance(room, Rendezvous)
    assert room.room % ranks == rank


@pytest.mark.parametrize("step", PRIORITY_STEPS)
def test_a_prefill_message_is_the_chain_that_celery_publishes(step: int) -> None:
    """chain(prefill, decode), each in its worker's queue. The priority is inherited, so it stands in the first only."""
    first, then = QueueName("prefill-pool-a.1"), QueueName("decode-pool-a.2")
    ours = decoded(json.loads(task_message(PREFILL_TASK, first, REQUEST, 0, step, then=then)))
    app = plain_celery()
    prefill, decode = (app.signature(task, (REQUEST, 0)) for task in (PREFILL_TASK, DECODE_TASK))
    prefill.set(queue=first, priority=step, task_id=f"{REQUEST}.0.prefill", ignore_result=True)
    work = chain(prefill, decode.set(queue=then, task_id=REQUEST, ignore_result=True))
    with app.connection_for_write() as connection:
        work.apply_async(connection=connection)
        theirs = decoded(json.loads(json.dumps(connection.default_channel._get(first))))
    del theirs["body"][2]["chain"][0]["options"]["reply_to"]  # where no result goes
    assert ours == theirs


@pytest.mark.parametrize("called", ["", "mine"])
@pytest.mark.parametrize("traceparent", ["", TRACEPARENT])
def test_the_message_that_follows_a_prefill_is_the_one_that_celerys_chain_publishes(
    called: str, traceparent: str
) -> None:
    """Sent from its message by an ordinary worker. Only Flower's text of a handoff is shorter than Celery's."""
    stages = [stage("prefill"), stage("decode")]
    of = job(name=REQUEST, stages=stages, x_request_id=called or REQUEST, traceparent=traceparent)
    handoff = KvHandle("an engine", 9e9, 200, {"where": [1, 2]})
    before = json.loads(task_messages(of, PRIORITY_STEPS[1], None, "")[0])
    queue, step, ours = next_message(of, handoff)
    app = plain_celery()
    (following,) = json.loads(RedisChannel.codecs["base64"].decode(before["body"]))[2]["chain"]
    with app.connection_for_write() as connection:
        app.signature(following).apply_async(  # as `celery.app.trace` does
            (msgspec.to_builtins(handoff),), chain=[], connection=connection, priority=step,
            parent_id=before["headers"]["id"], root_id=before["headers"]["root_id"],
        )  # fmt: skip
        theirs = decoded(json.loads(json.dumps(connection.default_channel._get(queue))))
    assert "'holder': 'an engine'" in theirs["headers"].pop("argsrepr")
    theirs["body"][2]["chain"] = theirs["body"][2]["chain"] or None
    theirs["properties"].pop("kwargsrepr", None)  # where nobody reads it
    mine = decoded(json.loads(ours))
    assert mine["headers"].pop("argsrepr") == f"({{'holder': 'an engine'}}, '{REQUEST}', 0)"
    assert mine == theirs
    assert mine["headers"].get("traceparent", "") == before["headers"].get("traceparent", "") == traceparent


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1))
def test_lower_priorities_never_come_later(a: int, b: int) -> None:
    """Each priority has one of the four lists."""
    assert priority_step(a) in PRIORITY_STEPS
    if a <= b:
        assert priority_step(a) <= priority_step(b)


def test_usual_requests_leave_room_on_both_sides() -> None:
    """Urgent ones overtake them, and the last list is kept for batch work."""
    assert priority_step(-1) < priority_step(0) < priority_step(1) < PRIORITY_STEPS[-1]
    assert priority_step(-1, aside=True) == PRIORITY_STEPS[-1]


def test_kombu_uses_our_priority_steps_and_separator() -> None:
    """We push to the lists that the worker pops from."""
    options = our_app.conf.broker_transport_options
    assert tuple(options["priority_steps"]) == PRIORITY_STEPS
    assert RedisChannel.sep == PRIORITY_SEP


def test_pictures_prompt_and_answer_are_one_chain() -> None:
    """Both workers that encode get the whole chain; the last one sends what Celery would: the prefill with its rest."""
    eyes = [stage("encode_pictures", str(number + 1), media=(number,)) for number in range(2)]
    of = job(name=REQUEST, stages=[*eyes, stage("prefill", "3"), stage("decode", "4")], traceparent=TRACEPARENT)
    *encoders, prefill, decode = task_messages(of, 0, None, "")
    assert not prefill
    assert not decode
    first, second = map(json.loads, encoders)
    for message in (first, second):
        assert message["headers"]["traceparent"] == TRACEPARENT
        assert message["headers"]["task"] == PICTURES_TASK
        _, _, embed = decoded(message)["body"]
        tasks = [(task["task"], task["options"]["queue"]) for task in embed["chain"]]
        assert tasks == [(DECODE_TASK, "decode.4"), (PREFILL_TASK, "prefill.3")]
    assert first["headers"]["id"] != second["headers"]["id"]
    [(queue, _step, raw)] = behind_pictures(of, WorkerId("2"))
    following = json.loads(raw)
    assert (queue, following["headers"]["task"]) == ("prefill.3", PREFILL_TASK)
    assert following["headers"]["traceparent"] == TRACEPARENT
    assert following["headers"]["parent_id"] == second["headers"]["id"]
    assert [task["options"]["queue"] for task in decoded(following)["body"][2]["chain"]] == ["decode.4"]


def test_where_prefill_and_decode_meet_both_begin_when_the_pictures_are_encoded() -> None:
    eyes = [stage("encode_pictures", str(number + 1), media=(number,)) for number in range(2)]
    room = rendezvous("host:1", 2, 1)
    of = job(name=REQUEST, stages=[*eyes, stage("prefill", "3", rank=1), stage("decode", "4")], meets=room)
    *encoders, prefill, decode = task_messages(of, 0, None, "host:1", 2)
    assert (prefill, decode) == (b"", b"")
    assert [decoded(json.loads(raw))["body"][2]["chain"] for raw in encoders] == [None, None]
    tasks = behind_pictures(of, WorkerId("2"))
    assert [task.queue for task in tasks] == ["prefill.3", "decode.4"]
    assert [read_task_message(task.message) for task in tasks] == [(room, REQUEST, 0)] * 2
    assert room.room % 2 == 1
