"""Turns what is known of an attempt into its spans. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from app.dispatch.attempt_log import LoggedAttempt
from app.dispatch.observing.route_explanation import explained
from app.messages.job import Job, Timing
from app.tracing.span import Attribute, Span
from app.tracing.traceparent import new_span_id


def attempt_spans(attempt: LoggedAttempt, request_span: str, first_token: float | None = None) -> list[Span]:
    """The attempt's own span, and one for each of its stages.

    `first_token`: when the answer's first token was here, if it is this attempt's; seconds since the epoch.
    """
    job = attempt.job
    own: dict[str, Attribute] = {"xylem.request": job.request, "xylem.attempt": attempt.number}
    if job.worker:
        own |= {"xylem.worker": job.worker, "xylem.pool": job.stages[-1].pool}
    return [
        Span("attempt", attempt.span, request_span, attempt.began, attempt.ended, attributes=own, error=attempt.error),
        *_placing(attempt),
        *_computing(attempt, first_token),
    ]


def _placing(attempt: LoggedAttempt) -> Iterator[Span]:
    is_placed = attempt.placed >= attempt.began
    until = attempt.placed if is_placed else attempt.ended
    route = explained(attempt.job, attempt.decisions, candidates=True) if is_placed else {}
    route.pop("attempt", None)  # counted otherwise
    if "candidates" in route:  # as JSON: to export eighty attributes would take as long as all else
        route["candidates"] = orjson.dumps(route["candidates"]).decode()
    yield _stage(attempt, "place", attempt.began, until, _flat(route))


def _computing(attempt: LoggedAttempt, first_token: float | None) -> Iterator[Span]:
    job = attempt.job
    own = {stage.worker for stage in job.stages}
    timings = [timing for timing in attempt.timings if timing.worker in own]
    if not timings:  # only a worker that answers tells its times
        return
    first, last = timings[0], timings[-1]
    # Encode workers tell no times: the wait for them is one with that in their queues, and behind it.
    wait = "encode_pictures" if job.stage("encode_pictures") else "queue"
    yield _stage(attempt, wait, attempt.placed, first.taken, _worker(job, first))
    if job.kind != "decode":
        yield _stage(attempt, job.kind, first.taken, first.ended, _worker(job, first))
        return
    yield _stage(attempt, "prefill", first.taken, first.first or first.ended, _worker(job, first))
    if first is not last:
        yield _stage(attempt, "hop", first.ended, last.taken, _worker(job, last))
        yield from _resuming(attempt, last)
    if first_token is not None and first.first:
        yield _stage(attempt, "first_token", first.first, first_token)
    if last.first and last.ended > last.first:
        yield _stage(attempt, "decode", last.first, last.ended, _worker(job, last))


def _resuming(attempt: LoggedAttempt, last: Timing) -> Iterator[Span]:
    """Yields the span from the decode task to its first output, and the span of the KV's transfer.

    The transfer is within the first one: the engine tells only how long it took.
    """
    attributes = _worker(attempt.job, last) | {"xylem.handoff.refused": bool(last.refused)}
    resume = _stage(attempt, "resume", last.taken, last.first or last.ended, attributes)
    yield resume
    if last.pulled is not None and last.pulled.seconds:
        kv_attributes = {"xylem.kv.tokens": last.pulled.tokens, "xylem.kv.bytes": last.pulled.size}
        end = last.taken + last.pulled.seconds
        yield _stage(attempt, "transfer", last.taken, end, _worker(attempt.job, last) | kv_attributes, parent=resume.id)


def _stage(
    attempt: LoggedAttempt,
    name: str,
    start: float,
    end: float,
    attributes: Mapping[str, Attribute] = {},
    parent: str = "",
) -> Span:
    """A span within the attempt: two processes' readings of Redis' clock may differ a little."""
    start = min(max(start, attempt.began), attempt.ended)
    end = min(max(start, end), attempt.ended)
    return Span(name, new_span_id(), parent or attempt.span, start=start, end=end, attributes=attributes)


def _worker(job: Job, timing: Timing) -> dict[str, Attribute]:
    stage = job.stage_of(timing.worker)
    return {"xylem.worker": timing.worker, "xylem.pool": stage.pool, "xylem.rank": stage.rank}


def _flat(tree: Mapping[str, Any], prefix: str = "xylem.") -> dict[str, Attribute]:
    """Attributes, which have no other attributes in them."""
    flat: dict[str, Attribute] = {}
    for name, value in tree.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return flat
