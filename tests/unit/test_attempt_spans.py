"""Conversion of an attempt's times to its spans."""

from typing import Any

import pytest

from app.dispatch.attempt_log import AttemptLog, LoggedAttempt
from app.dispatch.observing.attempt_spans import attempt_spans
from app.ids import PoolId, WorkerId
from app.messages.handoff import KvHandle
from app.messages.job import Inputs, Job, KvTransfer, Painting, Stage, Timing
from app.messages.kinds import StageKind
from app.messages.trace import TracePlace
from app.routing.candidates import Decision, Option, Placement, PlacementCost
from app.tracing.span import Span
from app.tracing.traceparent import read
from tests import jobs
from tests.leases import candidate

P, D = WorkerId("p"), WorkerId("d")
ROOT, OWN = "0" * 15 + "1", "0" * 15 + "2"
PLACE = TracePlace("0af7651916cd43dd8448eb211c80319c", ROOT, "", sampled=True)
HERE = Timing(D, 12.0, 13.0, 20.0)


def job(*stages: Stage, **more: Any) -> Job:
    return jobs.job(stages=list(stages) or [stage("decode", D)], **more)


def stage(kind: StageKind, worker: WorkerId, rank: int = 0) -> Stage:
    return Stage(kind, PoolId(f"pool-{worker}"), worker, rank)


def attempt(of: Job | None = None, *timings: Timing, **more: Any) -> LoggedAttempt:
    fields = {"began": 10.0, "placed": 11.0, "ended": 21.0, "decisions": {}} | more
    return LoggedAttempt(1, OWN, of or job(), timings=timings, **fields)


def times(spans: list[Span]) -> dict[str, tuple[float, float]]:
    assert len({span.name for span in spans}) == len({span.id for span in spans}) == len(spans)
    return {span.name: (span.start, span.end) for span in spans}


def test_an_answer_of_one_worker() -> None:
    spans = attempt_spans(attempt(None, HERE), ROOT, 13.5)
    assert times(spans) == {
        "attempt": (10, 21), "place": (10, 11), "queue": (11, 12), "prefill": (12, 13), "first_token": (13, 13.5),
        "decode": (13, 20),
    }  # fmt: skip
    own, *below = spans
    assert (own.id, own.parent) == (OWN, ROOT)
    assert {span.parent for span in below} == {OWN}
    assert spans[-1].attributes == {"xylem.worker": "d", "xylem.pool": "pool-d", "xylem.rank": 0}


def test_an_answer_of_two_workers() -> None:
    """The transfer's time is within the time that the decode worker needs before its first token."""
    two = job(stage("prefill", P, rank=1), stage("decode", D))
    timings = Timing(P, 12.0, 13.0, 13.0), Timing(D, 14.0, 16.0, 20.0, KvTransfer(2, 4096, 0.5))
    spans = attempt_spans(attempt(two, *timings), ROOT)
    assert times(spans) == {
        "attempt": (10, 21), "place": (10, 11), "queue": (11, 12), "prefill": (12, 13), "hop": (13, 14),
        "resume": (14, 16), "transfer": (14, 14.5), "decode": (16, 20),
    }  # fmt: skip
    by_name = {span.name: span for span in spans}
    assert by_name["transfer"].parent == by_name["resume"].id
    assert by_name["transfer"].attributes["xylem.kv.bytes"] == 4096
    assert by_name["prefill"].attributes == {"xylem.worker": "p", "xylem.pool": "pool-p", "xylem.rank": 1}
    assert by_name["resume"].attributes["xylem.handoff.refused"] is False


def test_workers_that_begin_at_once_have_no_hop_that_ends_before_it_begins() -> None:
    two = job(stage("prefill", P), stage("decode", D), at_once=True)
    spans = attempt_spans(attempt(two, Timing(P, 12.0, 13.0, 13.0), Timing(D, 11.5, 14.0, 20.0)), ROOT)
    assert (times(spans)["hop"], times(spans)["resume"]) == ((13, 13), (11.5, 14))


@pytest.mark.parametrize(("of", "name"), [
    (job(stage("encode", D), inputs=Inputs([1, 1], "embed")), "encode"),
    (job(stage("paint", D), painting=Painting("a fox", 64, 64, 4, 1)), "paint"),
])  # fmt: skip
def test_what_generates_no_tokens_is_one_stage(of: Job, name: str) -> None:
    assert times(attempt_spans(attempt(of, Timing(D, 12.0, 20.0, 20.0)), ROOT)) == {
        "attempt": (10, 21), "place": (10, 11), "queue": (11, 12), name: (12, 20),
    }  # fmt: skip


def test_pictures_that_are_encoded_first_are_waited_for() -> None:
    of = job(stage("encode_pictures", P), stage("decode", D))
    assert times(attempt_spans(attempt(of, HERE), ROOT))["encode_pictures"] == (11, 12)


def test_an_answer_of_one_token_has_no_decode() -> None:
    assert "decode" not in times(attempt_spans(attempt(None, Timing(D, 12.0, 13.0, 13.0)), ROOT))


def test_an_attempt_without_a_worker_is_placing_to_its_end() -> None:
    """The time of a placement before is another attempt's."""
    spans = attempt_spans(attempt(job(), placed=9.0, error="no_worker"), ROOT)
    assert times(spans) == {"attempt": (10, 21), "place": (10, 21)}
    assert spans[0].error == "no_worker"


def test_an_attempt_whose_worker_was_lost_ends_with_what_is_known() -> None:
    """A prefill of it is; one that another attempt made is not its own."""
    two = job(stage("prefill", P), stage("decode", D))
    lost_attempt = attempt(two, Timing(P, 12.0, 13.0, 13.0), error="worker_lost")
    assert list(times(attempt_spans(lost_attempt, ROOT))) == ["attempt", "place", "queue", "prefill"]
    after = attempt(job(), Timing(P, 2.0, 3.0, 3.0), HERE)
    assert list(times(attempt_spans(after, ROOT))) == ["attempt", "place", "queue", "prefill", "decode"]


def test_a_stage_is_within_its_attempt() -> None:
    """Clocks of two hosts are known to a millisecond or so."""
    early, late = Timing(D, 10.9, 10.95, 21.2), Timing(D, 20.9, 21.1, 21.2)
    for timing in (early, late):
        for start, end in times(attempt_spans(attempt(None, timing), ROOT, 21.3)).values():
            assert 10 <= start <= end <= 21


def test_the_place_has_the_candidates_with_their_costs() -> None:
    """The costs are one text, because each attribute costs as much as a span."""
    option = Option(candidate(D, pool="pool-d"), cached=3)
    decision = Decision(Placement(PoolId("pool-d"), D, 0, 5, 20, 3), [(option, PlacementCost(0.5, 0.25))])
    spans = attempt_spans(attempt(None, HERE, decisions={"decode": decision}), ROOT)
    (place,) = [span for span in spans if span.name == "place"]
    assert (place.attributes["xylem.policy"], place.attributes["xylem.blocks_cached"]) == ("kv", 3)
    assert '"worker":"d"' in str(place.attributes["xylem.candidates"])
    assert '"wait":0.5' in str(place.attributes["xylem.candidates"])


async def test_each_attempt_has_a_span_of_its_own_that_its_workers_know() -> None:
    """The record's header names it, before the attempt has an end."""
    log = AttemptLog(PLACE)
    inflight = jobs.in_flight(job(traceparent=log.traceparent), log=log)
    first = inflight.job.traceparent
    inflight.again(None, "worker_lost")
    second = inflight.job.traceparent
    inflight.log_attempt("")
    callers = [read(header.encode()) for header in (first, second)]
    assert [caller.span for caller in callers if caller] == [one.span for one in log.attempts]
    assert [caller.trace for caller in callers if caller] == [PLACE.trace] * 2
    assert [(one.number, one.error) for one in log.attempts] == [(1, "worker_lost"), (2, "")]
    assert log.attempts[0].ended <= log.attempts[1].began


async def test_a_request_that_gives_way_all_day_keeps_its_last_attempts_only() -> None:
    inflight = jobs.in_flight(job(), log=AttemptLog(PLACE))
    for _ in range(100):
        inflight.again(None, "returned")
    inflight.log_attempt("")
    assert inflight.log is not None
    assert [one.number for one in inflight.log.attempts] == list(range(70, 102))


async def test_an_attempt_of_a_request_that_is_not_sampled_keeps_its_header() -> None:
    header = TracePlace(PLACE.trace, ROOT).traceparent
    inflight = jobs.in_flight(job(traceparent=header))
    inflight.again(KvHandle("an engine", 2e9, 2, {}), "returned")
    assert inflight.job.traceparent == header
