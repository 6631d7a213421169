"""A background task ends, though a cancellation may be lost on its way."""

import asyncio

import pytest

from app.running.ending import end_tasks


async def test_a_task_that_has_lost_its_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.running.ending._AGAIN_S", 0.01)
    lost_cancellations = 0

    async def work() -> None:
        nonlocal lost_cancellations
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                lost_cancellations += 1
                if lost_cancellations == 3:
                    raise

    async def broken() -> None:
        raise ValueError

    tasks = [asyncio.create_task(work()), asyncio.create_task(broken()), asyncio.create_task(asyncio.sleep(60))]
    await asyncio.sleep(0)
    await asyncio.wait_for(end_tasks(tasks), 5)
    assert lost_cancellations == 3
    assert all(task.done() for task in tasks)
    await end_tasks([])
