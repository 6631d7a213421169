"""The decode task: a whole request, or what follows its prefill elsewhere.

Its arguments are ids and a handoff: prompts don't belong in a broker's messages, logs or Flower.
"""

import asyncio
import time
from contextlib import aclosing
from typing import Any

from celery import shared_task
from msgspec import Struct

from app.engines.base import Disaggregated
from app.errors import EngineFailed, HandoffFailed
from app.messages import Delta, Done, Handoff, Job, Lent, Pulled, Timing
from app.tasks import runner as runners
from app.tasks.message import read_args
from app.tasks.runner import Runner
from app.telemetry import logger

log = logger(__name__)


@shared_task(name="app.tasks.decode.decode")
def decode(*args: Any) -> None:
    """Runs one request to its terminal event; the answer leaves through the runner's emitter.

    `args` are request id and attempt, and before them, for a prompt that was computed elsewhere, its handoff as JSON.
    """
    runner, (handoff, request, attempt) = runners.current(), read_args(args)
    runner.run(request, attempt, lambda job: answer(runner, job, handoff), lambda: _give_up(runner, handoff))


class _Told(Struct, frozen=True):
    first: float = 0.0  # when the first output came
    cached_tokens: int = 0
    pulled: Pulled | None = None


async def answer(runner: Runner, job: Job, handoff: Handoff | None) -> None:
    """To the terminal event. Raises what Engine.generate raises, and TimeoutError at the deadline."""
    taken, refused, told = time.time(), "", None
    async with asyncio.timeout(job.deadline - taken):
        if handoff is not None:
            try:
                told = await _generate(runner, job, handoff)
            except HandoffFailed as exc:
                refused = exc.message
                log.warning("handoff_refused", run=job.run, reason=refused)
                runner.aside(_give_up(runner, handoff))
        if told is None and job.begun and all(begun.finished for begun in job.begun):
            told = _Told()  # all of it is out, only its end was lost
        if told is None:
            told = await _generate(runner, job, None)
    own = Timing(runner.worker, taken, told.first, time.time(), told.pulled, refused)
    timings = [own] if job.prefilled is None else [job.prefilled, own]
    runner.emitter.end(job, Done(job.request, job.attempt, told.cached_tokens, timings))


async def _generate(runner: Runner, job: Job, handoff: Handoff | None) -> _Told:
    """Raises: HandoffFailed, before anything was emitted."""
    if handoff is not None and not isinstance(runner.engine, Disaggregated):
        raise HandoffFailed("This engine takes no KV from others.")
    told, emitter, api, id_, attempt = None, runner.emitter, job.reply_to, job.request, job.attempt
    emit = emitter.emit
    async with aclosing(runner.engine.generate(runner.request(job, handoff))) as steps:
        async for o in steps:
            if o.finish == "abort":  # not by us: a cancel ends this coroutine instead
                raise EngineFailed("The engine gave the request up.")
            if told is None:
                cached = o.cached_tokens if handoff is None else job.cached_tokens
                told = _Told(time.time(), cached, o.pulled)
                if handoff is None:
                    runner.prefilled(job, len(job.prompt) - cached)
                elif o.pulled is not None and o.pulled.seconds:
                    runner.pace.pulled(o.pulled.size, o.pulled.seconds, time.monotonic())
                if o.finish is None or job.sampling.n > 1:
                    runner.emitter.prefilled(job.run)
            if emitter.full:
                await emitter.room()
            emit(api, Delta(id_, attempt, o.text, o.tokens, o.index, o.finish, o.stop, o.logprobs, o.prompt_logprobs))
    assert told is not None, "an engine gives every choice its finish"
    return told


async def _give_up(runner: Runner, handoff: Handoff | None) -> None:
    """Nobody will take it: the client left between prefill and decode, or this engine refused it."""
    if isinstance(handoff, Lent) and isinstance(runner.engine, Disaggregated):
        await runner.engine.discard(handoff)
