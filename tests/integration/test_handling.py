"""The count of processes that died while they handled something."""

import asyncio
from contextlib import AsyncExitStack

from redis.asyncio import Redis

from app.keys import Keys
from app.store import Wire
from app.store.handling import Handling

KEYS = Keys("xylem")


async def died_with(wire: Wire, *names: str, proved: bool = False) -> None:
    """Leaves what a process leaves that is killed with all of these."""
    keys = [KEYS.handling(name) for name in names]
    async with AsyncExitStack() as stack:
        for name in names:
            handled = await stack.enter_async_context(Handling(wire, KEYS).of(name))
            if proved:
                await handled.proved()
        left = await wire.execute([("GET", key) for key in keys])
    await wire.execute([("SET", key, count, "EX", 86_400) for key, count in zip(keys, left, strict=True)])


async def deaths(wire: Wire, name: str) -> int:
    async with Handling(wire, KEYS).of(name) as handled:
        return handled.deaths


async def test_each_death_counts_and_one_that_proved_harmless_counts_a_third(wire: Wire) -> None:
    """What had begun well is a less likely cause; leaving without a result changes nothing."""
    assert await deaths(wire, "a") == 0
    await died_with(wire, "a")
    assert [await deaths(wire, "a") for _ in range(2)] == [1, 1]
    for n in (1, 1, 2):
        await died_with(wire, "a", proved=True)
        assert await deaths(wire, "a") == n
    assert await deaths(wire, "b") == 0


async def test_what_is_done_leaves_nothing_and_what_is_left_goes_after_a_day(wire: Wire, redis: "Redis") -> None:
    """Redis holds nothing of good ones."""
    await died_with(wire, "a", "b")
    async with Handling(wire, KEYS).of("a") as handled:
        handled.done = True
    assert await redis.keys("*") == [KEYS.handling("b").encode()]
    assert 86_000 < await redis.ttl(KEYS.handling("b")) <= 86_400
    async with Handling(wire, KEYS).of("c"):
        pass
    assert len(await redis.keys("*")) == 1


async def test_suspects_begin_one_after_the_other_beside_those_that_are_none(wire: Wire) -> None:
    """So that the next death is counted for one of them only."""
    await died_with(wire, "a", "b")
    handling = Handling(wire, KEYS)
    begun: asyncio.Queue[str] = asyncio.Queue()
    go_on = {name: asyncio.Event() for name in "abc"}

    async def handle(name: str) -> None:
        async with handling.of(name) as handled:
            begun.put_nowait(name)
            await go_on[name].wait()
            await handled.proved()
            await asyncio.Event().wait()

    tasks = [asyncio.create_task(handle(name)) for name in "abc"]
    async with asyncio.timeout(10):
        (first,) = {await begun.get(), await begun.get()} - {"c"}
    waits = "b" if first == "a" else "a"
    await asyncio.sleep(0.1)
    assert begun.empty()
    assert await wire.execute([("GET", KEYS.handling(name)) for name in (first, waits)]) == [b"6", b"3"]
    go_on[first].set()
    async with asyncio.timeout(10):
        assert await begun.get() == waits
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert await wire.execute([("GET", KEYS.handling(name)) for name in "abc"]) == [b"3", b"3", None]
