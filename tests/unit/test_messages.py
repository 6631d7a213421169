"""Round trips of what crosses a process, also between versions."""

import msgspec
import pytest
from hypothesis import given, settings
from msgspec import Struct

from app.messages.events import Delta, Done, EventBatch, Failed, TokenLogprob, Vectors, decode_event_batch
from app.messages.job import Inputs, Job, Sampling, decode_job
from app.messages.lease import Lease, decode_lease
from app.messages.wire import encode
from tests.values import structs


@settings(max_examples=50)
@given(structs(Job))
def test_a_job_comes_out_as_it_went_in(job: Job) -> None:
    """Each field of the job and of its sampling."""
    assert decode_job(encode(job)) == job


@given(structs(Lease))
def test_a_lease_comes_out_as_it_went_in(lease: Lease) -> None:
    """Each field of it."""
    assert decode_lease(encode(lease)) == lease


@given(structs(EventBatch))
def test_a_step_comes_out_as_it_went_in(step: EventBatch) -> None:
    """The step has deltas, ends and failures mixed, each as the type it was."""
    out = decode_event_batch(encode(step))
    assert out == step
    assert [type(e) for e in out.events] == [type(e) for e in step.events]


@pytest.mark.parametrize("cls", [Sampling, Job, Inputs, Vectors, TokenLogprob, Delta, Done, Failed, EventBatch, Lease])
def test_messages_are_frozen_arrays(cls: type[Struct]) -> None:
    """Arrays are small and let fields be added at the end; frozen ones can be shared."""
    assert cls.__struct_config__.frozen
    assert cls.__struct_config__.array_like


@given(structs(Lease))
def test_a_field_added_later_is_ignored_by_who_does_not_know_it(lease: Lease) -> None:
    """During a rolling upgrade new workers talk to old APIs."""
    newer = [*msgspec.msgpack.decode(encode(lease)), "a field of the next version"]
    assert decode_lease(encode(newer)) == lease


def test_a_field_missing_at_the_end_gets_its_default() -> None:
    """Old workers talk to new APIs."""
    older = msgspec.msgpack.decode(encode(EventBatch("w", 1, [Done("r", 0, 5)])))  # type: ignore[arg-type]
    older[2][0] = older[2][0][:3]
    assert decode_event_batch(encode(older)).events == [Done("r", 0)]  # type: ignore[arg-type]


@pytest.mark.parametrize("raw", [b"", b"\x93", encode({"a": 1}), encode(["w", 1, [["x", "r", 0]]]), encode("text")])
def test_what_is_no_step_is_refused_with_a_decode_error(raw: bytes) -> None:
    """The inbox catches exactly that one."""
    with pytest.raises(msgspec.DecodeError):
        decode_event_batch(raw)
