"""The decode task: a whole request, or the decode stage after a prefill on another worker.

Its arguments are ids and a handoff: prompts must not be in the broker's messages, logs or Flower.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any

from celery import shared_task
from msgspec import Struct
from msgspec.structs import replace

from app.engines.base import Disaggregated, StepOutput
from app.errors import EngineFailed, HandoffFailed, Returned
from app.ids import ApiId
from app.messages.celery_message import read_args
from app.messages.events import Delta, Done, Searched
from app.messages.handoff import Handoff, KvHandle
from app.messages.job import Job, KvTransfer, Timing
from app.runner.beam_search import Searching
from app.runner.buffered_output import BufferedOutput
from app.runner.outcome import Outcome
from app.runner.runner import RUNNER, RunArgs, Runner
from app.store import clock
from app.tasks import DIRECT
from app.telemetry import logger

log = logger(__name__)
Emit = Callable[[ApiId, Delta], None]
_TOLD_S = 1.0  # how often a search tells what it has computed: its client may leave before there is an answer


def run_args(args: Sequence[Any]) -> RunArgs[None]:
    runner, (handoff, request, attempt) = RUNNER.get(), read_args(args)
    return RunArgs(request, attempt, lambda job: answer(runner, job, handoff), lambda: _discard(runner, handoff))


@shared_task(name="app.tasks.decode.decode", Strategy=DIRECT, run_args=staticmethod(run_args))
def decode(*args: Any) -> None:
    """Runs one request to its terminal event; the answer leaves through the runner's emitter.

    `args`: request id and attempt; before them, if another worker computed the prompt, the handoff as JSON.
    """
    RUNNER.get().run(run_args(args))


class _Report(Struct):
    """Report of how a job was handled, of the prompt as the first output says."""

    outcome: Outcome
    first: float = 0.0  # when the first output came; 0: not yet
    cached_tokens: int = 0
    pulled: KvTransfer | None = None
    refused: str = ""  # why the handoff was refused, and the prompt computed here
    expanded: list[int] = []  # as in `Done`
    search: Searching | None = None  # for its answers; None: they are drawn


async def answer(runner: Runner, job: Job, handoff: Handoff | None) -> None:
    """Runs a job to its terminal event. Raises: Returned (aside jobs), and the errors of Engine.generate."""
    taken_at, report = clock.now(), _Report(runner.outcome(job))
    if job.aside or job.whole:
        await _interruptibly(runner, job, handoff, report)
    else:
        await _run_through(runner, job, handoff, report, runner.emitters.of(job).emit)
    own = Timing(
        runner.worker,
        taken_at,
        report.first,
        ended=clock.now(),
        pulled=report.pulled,
        refused=report.refused,
        cost_s=runner.cost_s(job),
    )
    timings = [own] if job.prefilled is None else [job.prefilled, own]
    event = Done(
        job.request,
        job.attempt,
        report.cached_tokens,
        timings,
        expanded=report.expanded,
        unshown=0 if report.search is None else report.search.unshown,
    )
    runner.emitters.of(job).end(job, event)


async def _run_through(runner: Runner, job: Job, handoff: Handoff | None, report: _Report, emit: Emit) -> None:
    if handoff is not None:
        try:
            await _generate(runner, job, handoff, report, emit)
            return
        except HandoffFailed as exc:
            report.refused = exc.message
            log.warning("handoff_refused", run=job.run, **job.names, reason=report.refused)
            runner.in_background(_discard(runner, handoff))
            if not runner.computes:  # another prefill worker does
                raise
    if job.begun and all(output.finished for output in job.begun):
        return  # only the terminal event was lost
    await _generate(runner, job, None, report, emit)


async def _interruptibly(runner: Runner, job: Job, handoff: Handoff | None, report: _Report) -> None:
    """Sends the buffered output in any case: the worker that continues the job begins after it."""
    out = BufferedOutput(job, runner.emitters.of(job))
    try:
        if job.aside:
            await _aside(runner, job, report, out)
        else:
            await _run_through(runner, job, handoff, report, out.emit)
    finally:
        out.flush()


async def _aside(runner: Runner, job: Job, report: _Report, out: BufferedOutput) -> None:
    """Runs the job whenever the gate lets it in, each time continuing its output. Raises: Returned."""
    gate = runner.gate(job)
    with gate.aside_job(job) as aside_job:
        while not out.over:
            rest = replace(job, begun=out.begun)
            await gate.enter(aside_job, rest)
            if runner.closed:
                raise Returned
            try:
                async with asyncio.timeout(None) as timeout:
                    with gate.inside(aside_job, timeout), runner.has(job):
                        await _generate(runner, rest, None, report, out.emit)
            except TimeoutError:
                if not timeout.expired():
                    raise


async def _generate(runner: Runner, job: Job, handoff: Handoff | None, report: _Report, emit: Emit) -> None:
    """Raises: HandoffFailed, before anything was emitted."""
    if job.sampling.beams is not None:
        await _search(runner, job, report, emit)
        return
    if handoff is not None and not isinstance(runner.engine, Disaggregated):
        raise HandoffFailed("This engine takes no KV from others.")
    if isinstance(handoff, KvHandle) and handoff.weights != runner.weights:
        raise HandoffFailed("Its KV was computed with other weights.")
    first, emitter, api, id_, attempt = True, runner.emitters.of(job), job.reply_to, job.request, job.attempt
    outcome = report.outcome
    request = await runner.requests.generation(job, handoff, runner.weights)
    async with aclosing(runner.stops.steps(job, runner.engine.generate(request))) as steps:
        async for o in steps:
            if o.finish == "abort":  # not ours: a cancel ends this coroutine instead
                raise EngineFailed("The engine aborted the request.")
            if first:
                first = False
                _report_first_output(runner, job, handoff, report, o)
            outcome.answer_tokens += len(o.tokens)
            if o.finish is not None:
                outcome.finishes.append(o.finish)
            if emitter.full:
                await emitter.room()
            emit(
                api,
                Delta(
                    id_,
                    attempt,
                    o.text,
                    o.tokens,
                    o.index,
                    finish=o.finish,
                    stop=o.stop,
                    logprobs=o.logprobs,
                    prompt_logprobs=o.prompt_logprobs,
                    weights=runner.weights,
                ),
            )
    assert not first, "an engine gives every choice its finish"


async def _search(runner: Runner, job: Job, report: _Report, emit: Emit) -> None:
    """Emits all answers at once, so that none is out where another worker has to begin anew."""
    emitter, make_tokenizer = runner.emitters.of(job), runner.tokenizer
    assert make_tokenizer is not None, "a worker that generates has one"
    if report.search is None or report.search.weights != runner.weights:
        report.search = Searching(job, make_tokenizer(), runner.info.max_model_len, runner.weights)
    search, told_at = report.search, time.monotonic()
    request = await runner.requests.generation(job, None, runner.weights)
    async with aclosing(search.steps(runner.engine, request)) as steps:
        async for o in steps:
            if not report.first:
                _report_first_output(runner, job, None, report, replace(o, finish=None))
            emitter.withheld += search.width
            if time.monotonic() - told_at > _TOLD_S:
                told_at = time.monotonic()
                emitter.emit(job.reply_to, Searched(job.request, job.attempt, search.tokens))
    if emitter.full:
        await emitter.room()
    for a in search.answers():
        report.outcome.answer_tokens += len(a.tokens)
        report.outcome.finishes.append(a.finish or "")
        delta = Delta(
            job.request,
            job.attempt,
            a.text,
            a.tokens,
            a.index,
            finish=a.finish,
            stop=a.stop,
            logprobs=a.logprobs,
            weights=search.weights,
        )
        emit(job.reply_to, delta)


def _report_first_output(runner: Runner, job: Job, handoff: Handoff | None, report: _Report, o: StepOutput) -> None:
    """Notes and reports what the first output tells of the prompt."""
    if not report.first:
        report.first, report.pulled, report.expanded = clock.now(), o.pulled, o.expanded
        report.cached_tokens = o.cached_tokens if handoff is None else job.cached_tokens
    if handoff is None:
        runner.prefilled(job, len(job.prompt) + job.encoder_tokens - o.cached_tokens)
    else:
        runner.throughput.pulled(job, o.pulled)
    if o.finish is None or job.sampling.n > 1:
        runner.emitters.of(job).prefilled(job.run)


async def _discard(runner: Runner, handoff: Handoff | None) -> None:
    """Lets the prefill engine free the KV: the client left before decode, or this engine refused the handoff."""
    if isinstance(handoff, KvHandle) and isinstance(runner.engine, Disaggregated):
        await runner.engine.discard(handoff)
