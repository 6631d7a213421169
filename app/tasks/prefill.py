"""The prefill task: computes a prompt, and returns its handoff, with which Celery's chain starts the decode task."""

import asyncio
from typing import Any, ClassVar

import msgspec
from celery import Task, shared_task
from msgspec.structs import replace
from redis.exceptions import RedisError, ResponseError

from app.engines.base import Disaggregated
from app.errors import EngineFailed, HandoffFailed
from app.messages import (
    Delta,
    Done,
    Failed,
    FirstToken,
    Job,
    KvHandle,
    Lease,
    PartialOutput,
    PrefillDone,
    Rendezvous,
    Timing,
    decode_lease,
    encode,
)
from app.routing.disagg import still_fits
from app.runner.job_record import RETRY_S
from app.runner.runner import RUNNER, Runner
from app.store import RELEASE, clock
from app.tasks.celery_message import read_args
from app.telemetry import logger

log = logger(__name__)


class _Prefill(Task):  # type: ignore[misc]  # Celery has no types
    """Tells the API replica once the decode task is in its queue, or could not be put there."""

    abstract = True
    # By task id, since Celery calls `on_failure` where `self.request` may be over already.
    enqueuing: ClassVar[dict[str, tuple[Job, KvHandle, PrefillDone]]] = {}

    def on_success(self, _retval: Any, task_id: str, _args: Any, _kwargs: Any) -> None:
        if task_id in self.enqueuing:
            job, _handle, event = self.enqueuing.pop(task_id)
            RUNNER.get().tell(job, event)

    def on_failure(self, exc: Exception, task_id: str, _args: Any, _kwargs: Any, _einfo: Any) -> None:
        log.error("decode_not_enqueued", error=type(exc).__name__)
        if task_id not in self.enqueuing:
            return
        job, handle, event = self.enqueuing.pop(task_id)
        if isinstance(exc.__cause__, ResponseError):  # Redis refused the message: the handoff is unused
            RUNNER.get().tell(job, replace(event, returned=handle))
        else:  # the message may be in the queue all the same; its task then discards the KV
            RUNNER.get().tell(job, Failed(job.request, job.attempt, HandoffFailed.code, HandoffFailed().message))


@shared_task(bind=True, base=_Prefill, name="app.tasks.prefill.prefill")  # type: ignore[untyped-decorator]
def prefill(self: Task, *args: Any) -> Any:
    """Computes one prompt; returns its handoff as JSON, or None if no decode task is to follow.

    `args`: request id and attempt; before them, if both workers begin at once, their Rendezvous as JSON.
    """
    runner, (rendezvous, request, attempt) = RUNNER.get(), read_args(args)
    assert not isinstance(rendezvous, KvHandle), "a computed prompt needs no prefill"
    found = runner.run(request, attempt, lambda job: compute(runner, job, rendezvous))
    if found is None:
        self.request.chain = None
        return None
    job, handle, event = found
    if event is not None:
        self.enqueuing[self.request.id] = job, handle, event
    return msgspec.to_builtins(handle)


async def compute(
    runner: Runner, job: Job, rendezvous: Rendezvous | None
) -> tuple[Job, KvHandle, PrefillDone | None] | None:
    """The job, the decode task's handoff, and the event for the API replica once that task is queued.

    None if no decode task is to follow. Raises the errors of Engine.prefill.
    """
    if not isinstance(runner.engine, Disaggregated):
        raise EngineFailed("This engine computes no prompts for others.")
    taken, emitter = clock.now(), runner.emitters.of(job)
    done, weights = await runner.engine.prefill(runner.request(job, rendezvous)), runner.weights
    handle = None if done.handoff is None else replace(done.handoff, weights=weights)
    first, o = clock.now(), done.output
    if o is not None and o.finish == "abort":  # not ours: a cancel ends this coroutine instead
        raise EngineFailed("The engine aborted the prefill.")
    runner.prefilled(job, len(job.prompt) - done.cached_tokens)
    timing = Timing(runner.worker, taken, first, first)
    job = replace(job, cached_tokens=done.cached_tokens, prefilled=timing)
    if o is not None:
        begun = PartialOutput(o.tokens, len(o.text))
        delta = Delta(job.request, job.attempt, o.text, o.tokens, 0, o.finish, o.stop, o.logprobs, weights=weights)
        emitter.emit(job.reply_to, FirstToken(job.request, job.attempt, delta, begun))
        if o.finish is not None:
            emitter.end(job, Done(job.request, job.attempt, done.cached_tokens, [timing]))
            if handle is None:
                return None
            await emitter.drained()
            return job, handle, None  # the decode task finds no record, and discards the KV
        job = replace(job, begun=[begun])
    event = PrefillDone(job.request, job.attempt, timing)
    try:
        lease = await hand_over(runner, job)
    except asyncio.CancelledError:
        if handle is None or runner.stopping:
            raise
        emitter.release(job.run)  # the client has left: the decode task finds no record, and discards the KV
        return job, handle, None
    if handle is None:
        emitter.emit(job.reply_to, event)
        return None
    if not still_fits(lease, -(-len(job.prompt) // runner.block_size)):
        emitter.emit(job.reply_to, replace(event, returned=handle))
        return None
    return job, handle, event


async def hand_over(runner: Runner, job: Job) -> Lease | None:
    """Updates the record, removes this worker's reservation, and returns the decode worker's lease.

    A record that is gone isn't written again: nobody awaits that request, and the decode task finds no record.
    """
    keys = runner.keys
    account = keys.release(job.run, runner.worker, runner.pool)
    while True:
        pipe = runner.redis.pipeline(transaction=False)
        pipe.set(keys.request(job.run), encode(job), xx=True, keepttl=True)
        pipe.get(keys.worker(job.worker))
        pipe.eval(RELEASE, len(account), *account, job.run, "left", runner.worker)
        try:
            _written, lease, _released = await pipe.execute()
        except (RedisError, OSError) as exc:
            log.warning("prefill_not_written", run=job.run, x_request_id=job.x_request_id, error=repr(exc))
            await asyncio.sleep(RETRY_S)
        else:
            return decode_lease(lease) if lease is not None else None
