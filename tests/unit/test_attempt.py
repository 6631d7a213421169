"""Attempts to answer a request: values that are checked where they are made."""

from typing import Any, cast

import pytest
from msgspec.structs import replace

from app.dispatch.answering.dispatcher import Dispatcher
from app.dispatch.attempt import Attempt
from app.dispatch.event_queue import EventQueue
from app.dispatch.inflight import InFlight, RoutingHints, State
from app.errors import NoWorker
from app.ids import ApiId, PoolId, RequestId, WorkerId
from app.keys import Keys
from app.messages.events import Delta, FirstToken, PrefillDone
from app.messages.handoff import KvHandle
from app.messages.job import Job, PartialOutput, Sampling, Stage, Timing
from app.messages.lease import Grid

POOL, WORKER, OTHER = PoolId("p"), WorkerId("w"), WorkerId("other")
JOB = Job(RequestId("r"), 0, ApiId("a"), [1, 2, 3], Sampling(8), 2e9)
ALONE = [Stage("decode", POOL, WORKER, 0)]
APART = [Stage("prefill", POOL, OTHER, 0), *ALONE]


def sent(stages: list[Stage], *, in_sequence: bool = False) -> Attempt:
    decision = Attempt(JOB).decided(stages, "", {}, behind=False)
    return decision.sent(decision.job, 5.0, in_sequence=in_sequence, awaits_first=in_sequence)


def dispatched(attempt: Attempt) -> tuple[Dispatcher, InFlight]:
    """A dispatcher without Redis, with one request that is on its workers."""
    dispatcher = Dispatcher(cast(Any, None), Keys("test"), ApiId("a"), cast(Any, None), {})
    inflight = InFlight(JOB, ((POOL,),), EventQueue(), RoutingHints())
    inflight.attempt = attempt
    dispatcher.in_flight[JOB.request] = inflight
    return dispatcher, inflight


def token(text: str) -> Delta:
    return Delta(JOB.request, 0, text, [1])


async def test_the_next_attempt_is_on_no_worker_and_keeps_what_holds_for_the_request() -> None:
    """KV of its prompt counts only where it is handed over."""
    timing, handle = Timing(OTHER, 1.0, 2.0, 3.0), KvHandle("h", 2e9, 3, {})
    previous = replace(sent(APART, in_sequence=True), may_split=False, held_since=4.0, refused=NoWorker(), expected=2)
    previous = replace(previous.prefilled(timing), before_first=None, first_tokens=1)
    output = [PartialOutput([7], 1, finished=False)]
    computed_anew = Attempt.after(previous, output, None, "trace")
    job = replace(JOB, attempt=1, begun=output, weights="", traceparent="trace")
    assert computed_anew == Attempt(job, may_split=False, placed_at=5.0)
    handed_over = Attempt.after(previous, output, handle, "trace")
    assert (handed_over.handoff, handed_over.job.prefilled) == (handle, timing)


async def test_workers_that_are_chosen_anew_have_got_nothing_yet() -> None:
    """A round that failed behind its decision leaves an attempt as it was sent."""
    together = sent(APART)  # both workers begin at once, so the last stage is the current one
    assert together.stage_index == -1
    chosen_anew = together.decided(ALONE, "", {}, behind=False)
    assert (chosen_anew.stage_index, chosen_anew.placings) == (0, 2)
    awaiting = sent(APART, in_sequence=True)
    assert awaiting.before_first == []
    assert awaiting.decided(ALONE, "", {}, behind=False).before_first is None


@pytest.mark.parametrize(
    "change",
    [
        {"stage_index": 1},
        {"stage_index": -2},
        {"before_first": []},
        {"refused": NoWorker()},
    ],
)
def test_an_attempt_that_can_not_be_is_not_made(change: dict[str, Any]) -> None:
    """A stage that its job lacks, a first token that nobody else gives, a refusal of one that does not wait."""
    with pytest.raises(AssertionError):
        replace(sent(ALONE), **change)


async def test_no_attempt_is_made_for_a_token() -> None:
    dispatcher, inflight = dispatched(sent(ALONE))
    attempt = inflight.attempt
    for _ in range(3):
        dispatcher.deliver(token("a"))
    assert inflight.attempt is attempt
    assert (inflight.out[0].tokens, inflight.state) == ([1, 1, 1], State.ANSWERING)


async def test_what_comes_before_the_prefill_workers_first_token_waits_for_it() -> None:
    """The tokens of the decode worker stand behind it; each stage replaces the attempt once."""
    dispatcher, inflight = dispatched(sent(APART, in_sequence=True))
    assert inflight.state is State.PREFILLING
    dispatcher.deliver(token("b"), PrefillDone(JOB.request, 0, None))
    assert (inflight.state, inflight.out[0].tokens, inflight.has_own_output) == (State.QUEUED, [], False)
    dispatcher.deliver(FirstToken(JOB.request, 0, token("a"), PartialOutput([1], 1, finished=False)))
    attempt = inflight.attempt
    dispatcher.deliver(token("c"))
    assert (inflight.attempt is attempt, attempt.first_tokens, inflight.has_own_output) == (True, 1, True)
    texts = [cast(Delta, event).text for event in await inflight.answer.take()]
    assert texts == ["a", "b", "c"]


def test_hashes_are_computed_once_for_all_that_an_attempt_becomes() -> None:
    """The next attempt has its own: the output is in its prompt."""
    grid = Grid(1, 1)
    attempt = Attempt(JOB)
    hashes = attempt.hashes(grid)
    assert attempt.decided(ALONE, "", {}, behind=False).hashes(grid) is hashes
    assert Attempt.after(attempt, [PartialOutput([7], 1, finished=False)], None, "").hashes(grid) != hashes
