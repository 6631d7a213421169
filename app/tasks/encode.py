"""The encode task: makes the vectors of all inputs of one job, or of none. Repeating it gives the same."""

from collections.abc import Sequence
from typing import Any

from celery import shared_task

from app.engines.base import Encoder
from app.errors import EngineFailed
from app.messages.celery_message import read_args
from app.messages.events import Done, Vectors
from app.messages.job import Job, Timing
from app.runner.runner import RUNNER, RunArgs, Runner
from app.store import clock
from app.tasks import DIRECT
from app.tasks.aside import run_aside


def run_args(args: Sequence[Any]) -> RunArgs[None]:
    runner, (_, request, attempt) = RUNNER.get(), read_args(args)
    return RunArgs(request, attempt, lambda job: answer(runner, job))


@shared_task(name="app.tasks.encode.encode", Strategy=DIRECT, run_args=staticmethod(run_args))
def encode(*args: Any) -> None:
    """Runs one job to its terminal event; `args` are request id and attempt."""
    RUNNER.get().run(run_args(args))


async def answer(runner: Runner, job: Job) -> None:
    """Runs a job to its terminal event. Raises: Returned (aside jobs), and the errors of Encoder.encode."""
    taken_at = clock.now()
    data = await (run_aside(runner, job, _encoded) if job.aside else _encoded(runner, job))
    emitter = runner.emitters.of(job)
    if emitter.full:
        await emitter.room()
    emitter.emit(job.reply_to, Vectors(job.request, job.attempt, data))
    made_at = clock.now()
    timing = Timing(runner.worker, taken_at, made_at, made_at, cost_s=runner.cost_s(job))
    emitter.end(job, Done(job.request, job.attempt, 0, [timing]))


async def _encoded(runner: Runner, job: Job) -> bytes:
    if not isinstance(runner.engine, Encoder):
        raise EngineFailed("This engine makes no vectors.")
    data = await runner.engine.encode(runner.requests.encoding(job))
    runner.prefilled(job, len(job.prompt))
    return data
