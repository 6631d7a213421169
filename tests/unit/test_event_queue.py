"""An answer is a list that one side fills and the other empties: in order, nothing twice, nobody asleep for ever."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.dispatch.event_queue import EventQueue
from app.errors import Cancelled, XylemError
from app.ids import RequestId
from app.messages.events import Delta, Done, Failed


def delta(i: int) -> Delta:
    return Delta(RequestId("r"), 0, str(i), [i])


@given(st.lists(st.integers(0, 4), max_size=20))
def test_events_are_taken_once_and_in_order_however_they_arrive(batches: list[int]) -> None:
    """Whether several come before the reader looks or one at a time."""

    async def run() -> None:
        answer, count = EventQueue(), 0
        events: list[object] = []
        for size in batches:
            for _ in range(size):
                answer.push(delta(count))
                count += 1
            if size:
                events += await answer.take()
        assert events == [delta(i) for i in range(count)]

    asyncio.run(run())


async def test_a_waiting_reader_wakes_with_everything_pushed_before_it_ran() -> None:
    """One wake-up takes a whole engine step."""
    answer = EventQueue()
    reader = asyncio.create_task(answer.take())
    await asyncio.sleep(0)
    answer.push(delta(0))
    answer.push(delta(1))
    answer.push(Done(RequestId("r"), 0))
    assert await asyncio.wait_for(reader, 1) == [delta(0), delta(1), Done(RequestId("r"), 0)]


async def test_a_waiting_reader_is_told_when_the_client_has_gone() -> None:
    """The reader must not wait for tokens that nobody reads."""
    answer = EventQueue()
    reader = asyncio.create_task(answer.take())
    await asyncio.sleep(0)
    answer.end(Cancelled())
    with pytest.raises(Cancelled):
        await asyncio.wait_for(reader, 1)


async def test_a_client_that_has_gone_gets_nothing_of_what_still_comes() -> None:
    """Gone is gone, also with events in hand."""
    answer = EventQueue()
    answer.push(delta(0))
    answer.end(Cancelled())
    answer.push(delta(1))
    for _ in range(2):
        with pytest.raises(Cancelled):
            await answer.take()


async def test_pending_says_how_many_events_wait() -> None:
    """The stream asks this around a write, to see whether the client held it up."""
    answer = EventQueue()
    assert answer.pending() == 0
    answer.push(delta(0))
    assert answer.pending() == 1
    await answer.take()
    assert answer.pending() == 0


async def test_a_sink_takes_what_comes_while_the_reader_waits_and_never_overtakes() -> None:
    """Directly written tokens and those that go through the reader are one sequence."""
    answer, deltas = EventQueue(), []

    def sink(d: Delta) -> bool:
        if d == delta(2):  # the client is behind
            return False
        deltas.append(d)
        return True

    answer.divert(sink)
    answer.push(delta(0))  # nobody waits: through the reader
    assert await answer.take() == [delta(0)]
    reader = asyncio.ensure_future(answer.take())
    await asyncio.sleep(0)
    for i in (1, 2, 3):
        answer.push(delta(i))
    assert deltas == [delta(1)]
    assert await reader == [delta(2), delta(3)]


async def test_a_terminal_event_always_wakes_the_reader() -> None:
    """The sink is for tokens only."""
    answer = EventQueue()
    answer.divert(lambda _: True)
    reader = asyncio.ensure_future(answer.take())
    await asyncio.sleep(0)
    answer.push(delta(0))
    end = Done(delta(0).request, 0)
    answer.push(end)
    assert await reader == [end]


async def test_an_abandoned_wait_loses_no_event() -> None:
    """A reader that timed out and comes again finds what came meanwhile."""
    answer = EventQueue()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(answer.take(), 0.001)
    answer.push(delta(0))
    assert await answer.take() == [delta(0)]


async def test_a_reader_who_is_far_behind_gets_a_few_large_deltas() -> None:
    """Ten thousand tokens that wait for one slow client are one text, not ten thousand objects."""
    answer, request = EventQueue(), RequestId("r")
    for i in range(10_000):
        answer.push(Delta(request, 0, f"{i} ", [i], i % 2))
    answer.push(Done(request, 0))
    assert answer.pending() < 1100
    events = await answer.take()
    assert isinstance(events[-1], Done)
    deltas = [e for e in events if isinstance(e, Delta)]
    for index in (0, 1):
        assert [t for d in deltas if d.index == index for t in d.tokens] == list(range(index, 10_000, 2))
        assert "".join(d.text for d in deltas if d.index == index).split() == [str(i) for i in range(index, 10_000, 2)]


async def test_a_writer_that_breaks_ends_its_own_answer_only() -> None:
    """The code that pushes has the events of others at hand as well."""

    def sink(_: Delta) -> bool:
        raise TypeError("cannot be written")

    answer = EventQueue()
    answer.divert(sink)
    taking = asyncio.create_task(answer.take())
    await asyncio.sleep(0)
    answer.push(delta(0))
    (event,) = await taking
    assert isinstance(event, Failed)
    assert event.code == XylemError.code


async def test_a_slow_reader_gets_few_deltas_each_of_one_version_of_the_weights() -> None:
    answer = EventQueue()
    for i in range(3000):
        answer.push(replace(delta(i), weights="v1" if i < 500 else "v2"))
    events = await answer.take()
    assert len(events) < 1500
    pairs = [(token, d.weights) for d in events if isinstance(d, Delta) for token in d.tokens]
    assert pairs == [(i, "v1" if i < 500 else "v2") for i in range(3000)]
