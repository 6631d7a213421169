"""The count of processes that died while they handled something."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from redis.asyncio import Redis

from app.batch.handling_names import of_line, of_part
from app.ids import BatchId
from app.keys import Keys
from app.store import Wire
from app.store.handling import Handling
from workers.batch.suspect_lines import SuspectLines

KEYS = Keys("xylem")


async def died_with(wire: Wire, *names: str, proved: bool = False) -> None:
    """Leaves what a process leaves that is killed with all of these."""
    keys = [KEYS.handling(name) for name in names]
    async with AsyncExitStack() as stack:
        for name in names:
            attempt = await stack.enter_async_context(Handling(wire, KEYS).of(name))
            if proved:
                await attempt.proved()
        counts = await wire.execute([("GET", key) for key in keys])
    await wire.execute([("SET", key, count, "EX", 86_400) for key, count in zip(keys, counts, strict=True)])


async def deaths(wire: Wire, name: str) -> int:
    async with Handling(wire, KEYS).of(name) as attempt:
        return attempt.deaths


async def test_each_death_counts_and_one_that_proved_harmless_counts_a_third(wire: Wire) -> None:
    """A request that had begun well is a less likely cause; leaving without a result changes nothing."""
    assert await deaths(wire, "a") == 0
    await died_with(wire, "a")
    assert [await deaths(wire, "a") for _ in range(2)] == [1, 1]
    for n in (1, 1, 2):
        await died_with(wire, "a", proved=True)
        assert await deaths(wire, "a") == n
    assert await deaths(wire, "b") == 0


@pytest.mark.parametrize("odd", [("SET", "many"), ("SET", b"\xc1"), ("SET", 2**63 - 1), ("RPUSH", "3")])
async def test_a_count_that_is_no_number_begins_anew(wire: Wire, redis: "Redis", odd: tuple[str, Any]) -> None:
    """The work of that count would never be handled otherwise: a part of a batch, or all records of usage."""
    command, value = odd
    await redis.execute_command(command, KEYS.handling("a"), value)
    async with Handling(wire, KEYS).of("a") as attempt:
        assert attempt.deaths == 0
        assert await redis.get(KEYS.handling("a")) == b"3"
        attempt.done = True
    assert not await redis.keys("*")


async def test_what_is_done_leaves_nothing_and_what_is_left_goes_after_a_day(wire: Wire, redis: "Redis") -> None:
    """Redis holds nothing of good ones."""
    await died_with(wire, "a", "b")
    async with Handling(wire, KEYS).of("a") as attempt:
        attempt.done = True
    assert await redis.keys("*") == [KEYS.handling("b").encode()]
    assert 86_000 < await redis.ttl(KEYS.handling("b")) <= 86_400
    async with Handling(wire, KEYS).of("c"):
        pass
    assert len(await redis.keys("*")) == 1


async def test_suspects_begin_one_after_the_other_beside_those_that_are_none(wire: Wire) -> None:
    """The next death is thus counted for one of them only."""
    await died_with(wire, "a", "b")
    handling = Handling(wire, KEYS)
    starts: asyncio.Queue[str] = asyncio.Queue()
    go_on = {name: asyncio.Event() for name in "abc"}

    async def handle(name: str) -> None:
        async with handling.of(name) as attempt:
            starts.put_nowait(name)
            await go_on[name].wait()
            await attempt.proved()
            await asyncio.Event().wait()

    tasks = [asyncio.create_task(handle(name)) for name in "abc"]
    async with asyncio.timeout(10):
        (first,) = {await starts.get(), await starts.get()} - {"c"}
    waits = "b" if first == "a" else "a"
    await asyncio.sleep(0.1)
    assert starts.empty()
    assert await wire.execute([("GET", KEYS.handling(name)) for name in (first, waits)]) == [b"6", b"3"]
    go_on[first].set()
    async with asyncio.timeout(10):
        assert await starts.get() == waits
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert await wire.execute([("GET", KEYS.handling(name)) for name in "abc"]) == [b"3", b"3", None]


BATCH = BatchId("batch_1")


async def test_the_end_of_an_earlier_line_lets_no_other_line_begin(wire: Wire) -> None:
    """Two lines that nobody has read yet would begin at once otherwise, and the next death would count for both."""
    handling = Handling(wire, KEYS)
    suspects = SuspectLines(handling, BATCH)
    async with handling.of("part") as part, AsyncExitStack() as stack:
        suspects.begin(part, [1, 2])
        async with suspects.alone(1):
            await suspects.read(1)
            await stack.enter_async_context(suspects.alone(2))
            next_begins = asyncio.create_task(suspects.begun(2))
        await suspects.begun(1)
        assert not next_begins.done()
        await suspects.read(2)
        async with asyncio.timeout(5):
            await next_begins


async def test_a_part_has_begun_well_when_its_last_line_is_read_or_refused(wire: Wire) -> None:
    """The same holds while its lines are begun one after the other."""
    handling, name, line = Handling(wire, KEYS), of_part(BATCH, 0), of_line(BATCH, 2)
    for cut in (False, True):
        suspects = SuspectLines(handling, BATCH)
        async with AsyncExitStack() as stack:
            suspects.begin(await stack.enter_async_context(handling.of(name)), [1, 2])
            if cut:
                await stack.enter_async_context(suspects.alone(2))
            await suspects.read(1)
            assert await wire.execute([("GET", KEYS.handling(name))]) == [b"3"]
            await suspects.read(2)
            counts = await wire.execute([("GET", KEYS.handling(each)) for each in (name, line)])
            assert counts == [b"1", b"1" if cut else None]
