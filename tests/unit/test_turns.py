"""Turns of waiting requests: each comes after one of each other client, however many those have waiting."""

import asyncio

import pytest

from app.bounded.turns import Turns
from app.errors import Saturated


async def test_clients_take_turns() -> None:
    turns, order = Turns(1), []
    await turns.take("busy")

    async def work(client: str) -> None:
        await turns.take(client)
        order.append(client)
        turns.end()

    tasks = [asyncio.create_task(work("busy")) for _ in range(50)]
    await asyncio.sleep(0)
    tasks += [asyncio.create_task(work(client)) for client in ("small", "other", "small")]
    await asyncio.sleep(0)
    turns.end()
    await asyncio.gather(*tasks)
    assert (order[:6], len(order)) == (["busy", "small", "other", "busy", "small", "busy"], 53)


async def test_of_one_client_only_so_many_wait() -> None:
    """Others still may."""
    turns = Turns(1, most_waiting=2)
    await turns.take("busy")
    waiting = [asyncio.create_task(turns.take("busy")) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Saturated):
        await turns.take("busy")
    waiting.append(asyncio.create_task(turns.take("small")))
    for _ in range(3):
        await asyncio.sleep(0)
        turns.end()
    await asyncio.gather(*waiting)


async def test_who_leaves_as_another_turn_ends_is_passed_over() -> None:
    """The waiter that leaves has not heard yet that it is cancelled."""
    turns = Turns(1)
    await turns.take("a")
    leaver, last = (asyncio.create_task(turns.take(client)) for client in ("a", "b"))
    await asyncio.sleep(0)
    leaver.cancel()
    turns.end()
    async with asyncio.timeout(10):
        await last
    with pytest.raises(asyncio.CancelledError):
        await leaver


async def test_who_leaves_while_it_waits_keeps_no_turn() -> None:
    """A waiter that leaves at the very moment of its turn keeps none, either."""
    turns = Turns(1)
    await turns.take("a")
    leaver, late, last = (asyncio.create_task(turns.take(client)) for client in ("a", "b", "c"))
    await asyncio.sleep(0)
    leaver.cancel()
    await asyncio.sleep(0)
    turns.end()  # b's
    late.cancel()
    async with asyncio.timeout(10):
        await last
    turns.end()
    async with asyncio.timeout(10):
        await turns.take("d")


async def test_a_turn_of_the_loop_is_for_one_and_ends_by_itself() -> None:
    """One task of those that have much to do at once works between two turns of everybody else."""
    turns, work_ticks, ticks = Turns(1), [], 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    async def work() -> None:
        for _ in range(5):
            await turns.turn_of_loop()
            work_ticks.append(ticks)

    ticking = asyncio.create_task(tick())
    async with asyncio.timeout(10):
        await asyncio.gather(*(work() for _ in range(8)))
    ticking.cancel()
    assert len(set(work_ticks)) == 40, work_ticks


async def test_who_waits_for_too_long_is_told_so_and_holds_nothing() -> None:
    turns = Turns(1, what="readers")
    async with turns.turn():
        with pytest.raises(Saturated, match="readers"):
            async with turns.turn(0.01):
                raise AssertionError
    async with asyncio.timeout(10), turns.turn(5):
        pass
