"""Aside jobs without output on the way: they run when the gate lets them in."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from app.messages.job import Job
from app.runner.runner import Runner

T = TypeVar("T")


async def run_aside(runner: Runner, job: Job, work: Callable[[Runner, Job], Awaitable[T]]) -> T:
    """`work`, from the beginning again if it had to give way. Raises: Returned, and the errors of `work`."""
    gate = runner.gate(job)
    with gate.aside_job(job) as aside_job:
        while True:
            await gate.enter(aside_job, job)
            try:
                async with asyncio.timeout(None) as timeout:
                    with gate.inside(aside_job, timeout), runner.has(job):
                        return await work(runner, job)
            except TimeoutError:
                if not timeout.expired():
                    raise
