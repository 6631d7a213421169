"""The prefill task: computes a prompt, and sends the chain's next task, the decode task, with its handoff.

The message is Celery's chain, as any Celery worker would run it; here the engine's loop sends its second task.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from celery import Task, shared_task
from msgspec.structs import replace

from app.engines.base import Disaggregated
from app.errors import EngineFailed, HandoffFailed, Returned, StoreDown
from app.messages.celery_message import next_message, read_args
from app.messages.events import Delta, Done, Failed, FirstToken, PrefillDone
from app.messages.handoff import KvHandle, Rendezvous
from app.messages.job import Job, PartialOutput, Timing
from app.messages.lease import Lease, decode_lease
from app.messages.wire import encode
from app.routing.disagg import still_fits
from app.runner.job_record import RETRY_S
from app.runner.runner import RUNNER, RunArgs, Runner
from app.store import clock
from app.store.scripts import HAND_OVER, RELEASE
from app.tasks import DIRECT
from app.telemetry import logger

log = logger(__name__)


class Computed(NamedTuple):
    """A prompt that goes on at the decode worker."""

    job: Job
    handoff: KvHandle | None  # None: both workers began at once
    event: PrefillDone | None  # for the API replica, once the decode task is queued; None: the answer is complete


class _Task(NamedTuple):
    """A task that is to be sent."""

    queue: str  # its key
    message: bytes


def run_args(args: Sequence[Any]) -> RunArgs[Computed]:
    runner, (rendezvous, request, attempt) = RUNNER.get(), read_args(args)
    if isinstance(rendezvous, KvHandle):
        raise ValueError("a computed prompt needs no prefill")
    return RunArgs(request, attempt, lambda job: compute(runner, job, rendezvous), then=partial(pass_on, runner))


@shared_task(  # type: ignore[untyped-decorator]
    bind=True, name="app.tasks.prefill.prefill", Strategy=DIRECT, run_args=staticmethod(run_args)
)
def prefill(self: Task, *args: Any) -> None:
    """Computes one prompt, and sends the decode task that follows in the message's chain.

    `args`: request id and attempt; before them, if both workers begin at once, their Rendezvous as JSON.
    """
    self.request.chain = None  # `pass_on` sends it, or nothing is to follow
    RUNNER.get().run(run_args(args))


async def compute(runner: Runner, job: Job, rendezvous: Rendezvous | None) -> Computed | None:
    """None if nothing is to follow: the answer is complete and without KV, or the prompt was computed before.

    Raises the errors of Engine.prefill.
    """
    if not isinstance(runner.engine, Disaggregated):
        raise EngineFailed("This engine computes no prompts for others.")
    if job.prefilled is not None:
        log.warning("message_came_twice", run=job.run, **job.names)
        return None  # the first token is out, and the decode worker has the rest
    taken_at, emitter = clock.now(), runner.emitters.of(job)
    request, weights = await runner.requests.prefill(job, rendezvous, runner.weights), runner.weights
    result = await runner.engine.prefill(request)
    handle = None if result.handoff is None else replace(result.handoff, weights=weights)
    first, o = clock.now(), runner.stops.first(job, result.output)
    if o is not None and o.finish == "abort":  # not ours: a cancel ends this coroutine instead
        raise EngineFailed("The engine aborted the prefill.")
    runner.prefilled(job, len(job.prompt) - result.cached_tokens)
    timing = Timing(runner.worker, taken_at, first, first, cost_s=runner.cost_s(job))
    job = replace(job, cached_tokens=result.cached_tokens, prefilled=timing)
    if o is not None:
        runner.outcome(job).answer_tokens += len(o.tokens)
        output_so_far = PartialOutput(o.tokens, len(o.text))
        delta = Delta(
            job.request,
            job.attempt,
            text=o.text,
            tokens=o.tokens,
            index=0,
            finish=o.finish,
            stop=o.stop,
            logprobs=o.logprobs,
            weights=weights,
        )
        emitter.emit(job.reply_to, FirstToken(job.request, job.attempt, delta, output_so_far))
        if o.finish is not None:
            runner.outcome(job).finishes.append(o.finish)
            emitter.end(job, Done(job.request, job.attempt, result.cached_tokens, [timing]))
            if handle is None:
                return None
            with suppress(asyncio.CancelledError):  # whoever cancels it has removed the record, or ends this worker
                await emitter.drained()
            return Computed(job, handle, None)  # the decode task finds no record, and discards the KV
        job = replace(job, begun=[output_so_far])
    return Computed(job, handle, PrefillDone(job.request, job.attempt, timing))


async def pass_on(runner: Runner, computation: Computed) -> None:
    """Starts the decode task, as Celery's chain would; then, and not before, tells the API replica to watch its worker.

    Celery's own publisher takes a thread, and 1.5 CPU-ms.
    """
    job, handoff, event = computation
    reply: PrefillDone | Failed | None
    try:
        reply = await _start_decode(runner, job, handoff, event)
    except Returned as exc:
        return runner.fail(job, exc)
    except Exception as exc:  # noqa: BLE001 (nobody else would tell the replica)
        log.error("decode_not_enqueued", run=job.run, **job.names, error=type(exc).__name__)
        # The message may be in the queue all the same: its task then discards the KV.
        reply = None if event is None else Failed(job.request, job.attempt, HandoffFailed.code, HandoffFailed().message)
    if reply is not None:
        runner.emitters.of(job).emit(job.reply_to, reply)
    return None


async def _start_decode(
    runner: Runner, job: Job, handoff: KvHandle | None, event: PrefillDone | None
) -> PrefillDone | None:
    """Starts the decode stage. Returns what to tell the API replica. Raises: StoreDown, Returned."""
    wire, task = runner.broker_wire, None if handoff is None else _decode_task(runner, job, handoff)
    if event is None:  # the request is over: the task only discards the KV
        assert task is not None
        await wire.execute([("LPUSH", *task)])
        return None
    in_doubt: StoreDown | None = None  # whether the task is in its queue
    if task is not None and wire is runner.wire:
        try:
            was_sent = await _send_at_once(runner, job, task)
        except StoreDown as exc:
            log.warning("decode_not_enqueued_at_once", run=job.run, **job.names, error=exc.message)
            in_doubt = exc
        else:
            if was_sent is not None:
                return event if was_sent else replace(event, returned=handoff)
    lease = await hand_over(runner, job)
    if task is None:
        return event
    if _fits(runner, job, lease):
        (reply,) = await wire.execute_each([("LPUSH", *task)])
        if not isinstance(reply, StoreDown):
            return event
        log.error("decode_not_enqueued", run=job.run, **job.names, error=reply.message)
    if in_doubt is not None:  # a task of before may release the KV: nobody else can use it
        raise in_doubt
    return replace(event, returned=handoff)


def _decode_task(runner: Runner, job: Job, handoff: KvHandle) -> _Task:
    queue, step, message = next_message(job, handoff)
    return _Task(runner.keys.queue(queue, step), message)


async def _send_at_once(runner: Runner, job: Job, task: _Task) -> bool | None:
    """Does all of `hand_over`, and sends the task, in one round trip, before it is known whether its worker is there.

    Returns whether it is: if not, the task has been withdrawn. None: nothing was done, since Redis refuses it.
    Raises: StoreDown; the task may be in its queue all the same.
    """
    keys, wire = runner.keys, runner.wire
    names = *keys.release(job.run, runner.worker, runner.pool), task.queue
    script = "EVAL", HAND_OVER, len(names), *names, job.run, "left", runner.worker, encode(job), task.message
    # Not repeated: of two messages, one could be withdrawn while the worker has the other.
    lease, release = await wire.execute_once([("GET", keys.worker(job.worker)), script])
    if isinstance(release, StoreDown):
        return None
    if isinstance(lease, StoreDown):
        raise lease
    if _fits(runner, job, _read(lease)):
        return True
    (withdrawn,) = await wire.execute([("LREM", task.queue, 0, task.message)])
    return not withdrawn  # else the worker has taken it


async def hand_over(runner: Runner, job: Job) -> Lease | None:
    """Updates the record, removes this worker's reservation, and returns the decode worker's lease.

    A record that is gone isn't written again: nobody awaits that request, and the decode task finds no record. Waits
    while Redis is unreachable. Raises: Returned, if the worker ends meanwhile.
    """
    keys = runner.keys
    account = keys.release(job.run, runner.worker, runner.pool)
    commands = [
        ("SET", keys.request(job.run), encode(job), "XX", "KEEPTTL"),
        ("GET", keys.worker(job.worker)),
        ("EVAL", RELEASE, len(account), *account, job.run, "left", runner.worker),
    ]
    while True:
        try:
            _write, lease, _release = await runner.wire.execute(commands)
        except StoreDown as exc:
            log.warning("prefill_not_written", run=job.run, **job.names, error=exc.message)
            if runner.stopping:
                raise Returned from exc
            await asyncio.sleep(RETRY_S)
        else:
            return _read(lease)


def _read(lease: bytes | None) -> Lease | None:
    return decode_lease(lease) if lease is not None else None


def _fits(runner: Runner, job: Job, lease: Lease | None) -> bool:
    return still_fits(lease, -(-len(job.prompt) // runner.block_size))
