"""The task that encodes pictures of one job, and sends the chain's next task: the prefill task, or the decode task.

Several workers may encode pictures of one job at the same time; the last one sends the next task, as Celery's chord
would. What fails here is encoded where the prompt is computed.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from celery import Task, shared_task
from msgspec.structs import replace

from app.engines.base import PictureEncoder
from app.errors import EngineFailed, MediaLost, RequestError, Returned, StoreDown
from app.messages.celery_message import behind_pictures, read_args
from app.messages.events import Failed, PicturesEncoded
from app.messages.job import Job
from app.runner.runner import RUNNER, RunArgs, Runner
from app.store.scripts import ENCODED, RELEASE
from app.tasks import DIRECT
from app.telemetry import logger

log = logger(__name__)
_LAST, _NOBODY_WAITS, _GONE = 1, -1, -2  # answers of `encoded.lua`


def run_args(args: Sequence[Any]) -> RunArgs[Job]:
    runner, (_, request, attempt) = RUNNER.get(), read_args(args)
    return RunArgs(request, attempt, lambda job: encode_all(runner, job), then=partial(pass_on, runner))


@shared_task(  # type: ignore[untyped-decorator]
    bind=True, name="app.tasks.encode_pictures.encode_pictures", Strategy=DIRECT, run_args=staticmethod(run_args)
)
def encode_pictures(self: Task, *args: Any) -> None:
    """Encodes the pictures that this worker's stage of the job names; `args` are request id and attempt."""
    self.request.chain = None  # `pass_on` sends it
    RUNNER.get().run(run_args(args))


async def encode_all(runner: Runner, job: Job) -> Job:
    """Raises: EngineDead; EngineFailed if this engine can't."""
    if not isinstance(runner.engine, PictureEncoder):
        raise EngineFailed("This engine encodes no pictures for others.")
    mine = replace(job, media=[job.media[number] for number in job.stage_of(runner.worker).media])
    try:
        media = await runner.requests.media(mine)
    except (MediaLost, RequestError) as exc:
        log.warning("pictures_not_read", run=job.run, **job.names, error=exc.message)
        return job
    tokens = await runner.pictures.encode(runner.engine, job, media, runner.weights)
    if tokens:
        runner.prefilled(job, tokens)
    return job


async def pass_on(runner: Runner, job: Job) -> None:
    """Leaves the request; the last of the workers that encode its pictures sends its next task, or two at once."""
    emitter = runner.emitters.of(job)
    try:
        answer = await _send_next(runner, job)
    except StoreDown as exc:
        log.error("next_task_not_enqueued", run=job.run, **job.names, error=exc.message)
        emitter.emit(job.reply_to, Failed(job.request, job.attempt, Returned.code, Returned().message))
        return
    if answer == _GONE:
        emitter.emit(job.reply_to, Failed(job.request, job.attempt, Returned.code, Returned().message))
    elif answer == _LAST:
        emitter.emit(job.reply_to, PicturesEncoded(job.request, job.attempt))


async def _send_next(runner: Runner, job: Job) -> int:
    """The answer of `encoded.lua`. Raises: StoreDown."""
    keys, run = runner.keys, job.run
    encoders = sum(stage.kind == "encode_pictures" for stage in job.stages)
    stage, apart = job.stages[encoders], runner.broker_wire is not runner.wire
    tasks = [(keys.queue(task.queue, task.step), task.message) for task in behind_pictures(job, runner.worker)]
    queues, messages = ([], []) if apart else zip(*tasks, strict=True)
    names = keys.encoded(run), keys.request(run), keys.worker(stage.worker), *queues
    account = keys.release(run, runner.worker, runner.pool)
    answer, _release = await runner.wire.execute(
        [
            ("EVAL", ENCODED, len(names), *names, runner.worker, encoders, *messages),
            ("EVAL", RELEASE, len(account), *account, run, "left", runner.worker),
        ]
    )
    if answer == _LAST and apart:
        await runner.broker_wire.execute([("LPUSH", *task) for task in tasks])
    return int(answer)
