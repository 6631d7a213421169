"""Messages of other processes, of another version or broken: each is understood, or refused with one kind of error."""

import importlib
import inspect
import math
import pkgutil
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from app import messages
from app.ids import QueueName, RequestId, WorkerId
from app.messages.celery_message import DECODE_TASK, read_task_message, task_message
from app.messages.commands import Reply, WorkerCommand, decode_reply, decode_worker_command
from app.messages.events import EventBatch, PrefillDone, decode_event_batch
from app.messages.handoff import Handoff, KvHandle
from app.messages.job import Job, decode_job
from app.messages.lease import Lease, decode_lease
from app.messages.wire import encode
from tests.fuzz.damage import damaged
from tests.fuzz.examples import examples
from tests.values import structs, values

MODULES = [importlib.import_module(f"app.messages.{module.name}") for module in pkgutil.iter_modules(messages.__path__)]
EVERY = sorted(
    {c for module in MODULES for _, c in inspect.getmembers(module, inspect.isclass) if issubclass(c, Struct)}
    - {Struct},
    key=lambda kind: kind.__name__,
)
DECODERS: dict[Callable[[bytes], Any], Any] = {
    decode_job: Job,
    decode_event_batch: EventBatch,
    decode_lease: Lease,
    decode_worker_command: WorkerCommand,
    decode_reply: Reply,
}
NESTED = [b"\x91" * 100_000, b"\x81\xa1a" * 100_000]
few = examples(40)
# As workers make them: JSON has no infinite times.
HANDOFFS = values(Handoff).filter(lambda made: not isinstance(made, KvHandle) or math.isfinite(made.expires))


@pytest.mark.parametrize("kind", EVERY)
@few
@given(data=st.data())
def test_every_message_comes_out_as_it_went_in(kind: type[Struct], data: st.DataObject) -> None:
    message = data.draw(structs(kind))
    assert msgspec.msgpack.decode(encode(message), type=kind) == message


@pytest.mark.parametrize("kind", EVERY)
@few
@given(data=st.data())
def test_fields_of_a_newer_version_are_ignored(kind: type[Struct], data: st.DataObject) -> None:
    """New fields are at the end of an array, or under a name of their own."""
    message = data.draw(structs(kind))
    plain = msgspec.msgpack.decode(encode(message))
    newer = plain | {"news": 1} if isinstance(plain, dict) else [*plain, None, "news", [1, {"a": 2}]]
    assert msgspec.msgpack.decode(encode(newer), type=kind) == message


@pytest.mark.parametrize("decode", DECODERS)
@few
@given(data=st.data())
def test_broken_bytes_are_a_message_or_a_decode_error(decode: Callable[[bytes], Any], data: st.DataObject) -> None:
    """A reader catches exactly that one."""
    raw = data.draw(damaged(values(DECODERS[decode]).map(encode)))
    try:
        message = decode(raw)
    except msgspec.DecodeError:
        return
    assert isinstance(message, DECODERS[decode])


@pytest.mark.parametrize("nest", NESTED)
def test_endless_nesting_is_a_decode_error(nest: bytes) -> None:
    """An engine may write what it likes in this place."""
    whole = encode(
        EventBatch(WorkerId("w"), 1, [PrefillDone(RequestId("r"), 0, None, KvHandle("h", 1.0, 3, {"here": 1}))])
    )
    with pytest.raises(msgspec.DecodeError):
        decode_event_batch(whole.replace(b"\xa4here\x01", b"\xa4here" + nest))


@few
@given(HANDOFFS, st.integers(0, 9))
def test_a_task_message_comes_out_as_it_went_in(handoff: Handoff, attempt: int) -> None:
    raw = task_message(DECODE_TASK, QueueName("q"), RequestId("r"), attempt, 3, handoff)
    assert read_task_message(raw) == (handoff, "r", attempt)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(0, 9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
TASKS = values(Handoff).map(lambda h: task_message(DECODE_TASK, QueueName("q"), RequestId("r"), 1, 3, h))
BODIES = JSON | st.tuples(JSON, JSON, JSON).map(list)


@examples(300)
@given(damaged(TASKS) | BODIES.map(lambda body: orjson.dumps({"body": b64encode(orjson.dumps(body)).decode()})))
def test_a_broken_task_message_is_read_or_refused(raw: bytes) -> None:
    """A message that is no task counts as none, and harms nobody who reads on."""
    if (args := read_task_message(raw)) is None:
        return
    handoff, _, attempt = args
    assert isinstance(attempt, int)
    assert handoff is None or isinstance(handoff, Handoff)
