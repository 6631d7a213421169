"""The paint task: paints one picture or video. Repeating it gives the same bytes."""

from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from celery import shared_task

from app.messages.celery_message import read_args
from app.messages.events import Done, Painted, Progress
from app.messages.job import Job, Timing
from app.painters.base import PaintStep
from app.runner.runner import RUNNER, RunArgs, Runner
from app.store import clock
from app.tasks import DIRECT
from app.tasks.aside import run_aside

_PIECE = 512 * 2**10  # bytes of a file in one message: tokens of other requests wait behind it


def run_args(args: Sequence[Any]) -> RunArgs[None]:
    runner, (_, request, attempt) = RUNNER.get(), read_args(args)
    return RunArgs(request, attempt, lambda job: answer(runner, job))


@shared_task(name="app.tasks.paint.paint", Strategy=DIRECT, run_args=staticmethod(run_args))
def paint(*args: Any) -> None:
    """Runs one job to its terminal event; `args` are request id and attempt."""
    RUNNER.get().run(run_args(args))


async def answer(runner: Runner, job: Job) -> None:
    """Runs a job to its terminal event. Raises: Returned (aside jobs), and the errors of Painter.paint."""
    taken_at = clock.now()
    file = await (run_aside(runner, job, _painted) if job.aside else _painted(runner, job))
    emitter = runner.emitters.of(job)
    for start in range(0, len(file), _PIECE):
        emitter.emit(job.reply_to, Painted(job.request, job.attempt, start, file[start : start + _PIECE]))
        await emitter.drained()  # else the next piece would be in the same message
    made_at = clock.now()
    timing = Timing(runner.worker, taken_at, made_at, made_at, cost_s=runner.cost_s(job))
    emitter.end(job, Done(job.request, job.attempt, 0, [timing]))


async def _painted(runner: Runner, job: Job) -> bytes:
    """The file."""
    emitter = runner.emitters.of(job)
    async with aclosing(runner.painter.paint(await runner.requests.painting(job))) as steps:
        async for output in steps:
            if not isinstance(output, PaintStep):
                runner.prefilled(job, job.work)
                return output.file
            runner.progress(job, output.step, output.of)
            if job.whole and not output.preview:  # nobody looks
                emitter.withheld += 1
                continue
            if emitter.full:
                await emitter.room()
            emitter.emit(job.reply_to, Progress(job.request, job.attempt, output.step, output.of, output.preview))
    raise AssertionError("a painter's last output is the file")
