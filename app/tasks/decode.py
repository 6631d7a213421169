"""The decode task: a whole request, or what follows its prefill elsewhere.

Its arguments are ids and a handoff: prompts don't belong in a broker's messages, logs or Flower.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from celery import shared_task
from msgspec import Struct
from msgspec.structs import replace

from app.engines.base import Disaggregated, StepOutput
from app.errors import EngineFailed, HandoffFailed
from app.ids import ApiId
from app.messages import Delta, Done, Handoff, Job, KvHandle, KvTransfer, Timing
from app.runner.buffered_output import BufferedOutput
from app.runner.runner import RUNNER, Runner
from app.store import clock
from app.tasks.celery_message import read_args
from app.telemetry import logger

log = logger(__name__)
Emit = Callable[[ApiId, Delta], None]


@shared_task(name="app.tasks.decode.decode")
def decode(*args: Any) -> None:
    """Runs one request to its terminal event; the answer leaves through the runner's emitter.

    `args` are request id and attempt, and before them, for a prompt that was computed elsewhere, its handoff as JSON.
    """
    runner, (handoff, request, attempt) = RUNNER.get(), read_args(args)
    runner.run(request, attempt, lambda job: answer(runner, job, handoff), lambda: _give_up(runner, handoff))


class _Told(Struct):
    first: float = 0.0  # when the first output came; 0: not yet
    cached_tokens: int = 0
    pulled: KvTransfer | None = None
    refused: str = ""  # why its prompt was computed here, although another engine had


async def answer(runner: Runner, job: Job, handoff: Handoff | None) -> None:
    """To the terminal event. Raises what Engine.generate raises."""
    taken, told = clock.now(), _Told()
    if job.aside or job.whole:
        await _interruptibly(runner, job, handoff, told)
    else:
        await _run_through(runner, job, handoff, told, runner.emitter.emit)
    own = Timing(runner.worker, taken, told.first, clock.now(), told.pulled, told.refused)
    timings = [own] if job.prefilled is None else [job.prefilled, own]
    runner.emitter.end(job, Done(job.request, job.attempt, told.cached_tokens, timings))


async def _run_through(runner: Runner, job: Job, handoff: Handoff | None, told: _Told, emit: Emit) -> None:
    if handoff is not None:
        try:
            await _generate(runner, job, handoff, told, emit)
            return
        except HandoffFailed as exc:
            told.refused = exc.message
            log.warning("handoff_refused", run=job.run, x_request_id=job.x_request_id, reason=told.refused)
            runner.in_background(_give_up(runner, handoff))
            if not runner.computes:  # another prefill worker does
                raise
    if job.begun and all(begun.finished for begun in job.begun):
        return  # all of it is out, only its end was lost
    await _generate(runner, job, None, told, emit)


async def _interruptibly(runner: Runner, job: Job, handoff: Handoff | None, told: _Told) -> None:
    """All output so far goes out in any case: the worker that goes on with it begins behind that."""
    out = BufferedOutput(job, runner.emitter)
    try:
        if job.aside:
            await _aside(runner, job, told, out)
        else:
            await _run_through(runner, job, handoff, told, out.emit)
    finally:
        out.flush()


async def _aside(runner: Runner, job: Job, told: _Told, out: BufferedOutput) -> None:
    """Runs it whenever there is room beside the others, each time behind what has come. Raises: Returned."""
    gate = runner.gate(job)
    with gate.aside_job(job) as aside_job:
        while not out.over:
            rest = replace(job, begun=out.begun)
            await gate.enter(aside_job, rest)
            try:
                async with asyncio.timeout(None) as stay:
                    with gate.inside(aside_job, stay), runner.has(job):
                        await _generate(runner, rest, None, told, out.emit)
            except TimeoutError:
                if not stay.expired():
                    raise


async def _generate(runner: Runner, job: Job, handoff: Handoff | None, told: _Told, emit: Emit) -> None:
    """Raises: HandoffFailed, before anything was emitted."""
    if handoff is not None and not isinstance(runner.engine, Disaggregated):
        raise HandoffFailed("This engine takes no KV from others.")
    first, emitter, api, id_, attempt = True, runner.emitter, job.reply_to, job.request, job.attempt
    async with aclosing(runner.engine.generate(runner.request(job, handoff))) as steps:
        async for o in steps:
            if o.finish == "abort":  # not by us: a cancel ends this coroutine instead
                raise EngineFailed("The engine gave the request up.")
            if first:
                first = False
                _tell(runner, job, handoff, told, o)
            if emitter.full:
                await emitter.room()
            emit(api, Delta(id_, attempt, o.text, o.tokens, o.index, o.finish, o.stop, o.logprobs, o.prompt_logprobs))
    assert not first, "an engine gives every choice its finish"


def _tell(runner: Runner, job: Job, handoff: Handoff | None, told: _Told, o: StepOutput) -> None:
    """What the first output says of the prompt."""
    if not told.first:
        told.first, told.pulled = clock.now(), o.pulled
        told.cached_tokens = o.cached_tokens if handoff is None else job.cached_tokens
    if handoff is None:
        runner.prefilled(job, len(job.prompt) - o.cached_tokens)
    elif o.pulled is not None and o.pulled.seconds:
        runner.paces.online.pulled(o.pulled.size, o.pulled.seconds, time.monotonic())
    if o.finish is None or job.sampling.n > 1:
        runner.emitter.prefilled(job.run)


async def _give_up(runner: Runner, handoff: Handoff | None) -> None:
    """Nobody will take it: the client left between prefill and decode, or this engine refused it."""
    if isinstance(handoff, KvHandle) and isinstance(runner.engine, Disaggregated):
        await runner.engine.discard(handoff)
