"""Says before a run how many tokens it has, what they cost and how long it takes."""

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf
from random import Random
from typing import Any, NamedTuple

from app.cli.batch_run.batch_service import BatchService
from app.cli.batch_run.column import Row
from app.cli.batch_run.request_lines import RequestLines
from app.endpoints import CHAT, MESSAGE, RESPONSE, TEXT

_TOKENISED = 32  # rows whose prompts are counted
_ANSWERED = 8  # rows that are answered where no earlier batch tells how long answers are
_OLD = 10  # earlier batches that are looked at
_FLEX = (CHAT.path, TEXT.path, RESPONSE.path)

Sample = Sequence[tuple[int, Row]]


class Estimate(NamedTuple):
    rows: int
    prompt: int  # tokens, here and below
    completion: int
    seconds: float
    basis: str
    is_most: bool  # the time: engines may do more requests at once than were tried


class _Speed(NamedTuple):
    completion: float  # tokens of an answer
    tokens_per_s: float  # of prompts and answers
    basis: str
    is_most: bool = False


def sampled(rows: Iterable[Row]) -> tuple[int, Sample]:
    """The number of rows, and some of them, each as likely as any other. Raises: RunError."""
    rng, sample, number = Random(0), list[tuple[int, Row]](), 0  # noqa: S311 (nothing is secret)
    for number, row in enumerate(rows, 1):
        if len(sample) < _TOKENISED:
            sample.append((number, row))
        elif (place := rng.randrange(number)) < _TOKENISED:
            sample[place] = number, row
    return number, sample


def estimated(service: BatchService, lines: RequestLines, rows: int, sample: Sample) -> Estimate:
    """Asks for the tokens of some prompts, and how fast earlier batches were.

    Raises: ApiError, RunError, RunStopped.
    """
    bodies = [lines.body(number, row) for number, row in sample]
    prompts = [service.tokens(_countable(lines.endpoint, body)) for body in bodies]
    prompt = sum(prompts) / len(prompts)
    speed = _earlier(service.ended_batches(), lines) or _tried(service, lines.endpoint, bodies)
    completion = min(speed.completion, _most(bodies[0]))  # earlier answers may have been longer
    seconds = rows * (prompt + completion) / speed.tokens_per_s
    sums = round(rows * prompt), round(rows * completion)
    return Estimate(rows, *sums, seconds, basis=speed.basis, is_most=speed.is_most)


def _most(body: Mapping[str, Any]) -> float:
    """The most tokens of an answer that the request takes."""
    limits = (body.get(name) for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"))
    return min((limit for limit in limits if isinstance(limit, int)), default=inf)


def _countable(endpoint: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """A request of /tokenize about the same prompt."""
    if endpoint in (CHAT.path, MESSAGE.path):
        return {"model": body["model"], "messages": body["messages"]}
    if endpoint == RESPONSE.path and isinstance(body["input"], str):
        return {"model": body["model"], "messages": [{"role": "user", "content": body["input"]}]}
    return {"model": body["model"], "prompt": "\n".join(_texts({**body, "model": None}))}


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(part)


def _earlier(batches: Iterable[Mapping[str, Any]], lines: RequestLines) -> _Speed | None:
    """The speed of the client's own batches of this model, of those that are not too short to tell."""
    alike = [
        batch
        for batch in batches
        if (batch["model"], batch["endpoint"]) == (lines.model, lines.endpoint)
        and batch["completed_at"] - batch["in_progress_at"] >= 1
        and batch["request_counts"]["completed"] > _ANSWERED
    ][:_OLD]
    if not alike:
        return None
    seconds = sum(batch["completed_at"] - batch["in_progress_at"] for batch in alike)
    answers = sum(batch["request_counts"]["completed"] for batch in alike)
    tokens = sum(batch["usage"]["total_tokens"] for batch in alike)
    completion = sum(batch["usage"]["output_tokens"] for batch in alike) / answers
    return _Speed(completion, max(1, tokens) / seconds, f"your latest batches of this model ({len(alike)})")


def _tried(service: BatchService, endpoint: str, bodies: Sequence[Mapping[str, Any]]) -> _Speed:
    """Answers some rows at once. Raises: ApiError, RunStopped."""
    tier = {"service_tier": "flex"} if endpoint in _FLEX else {}
    requests = [{**body, **tier} for body in bodies[:_ANSWERED]]
    began = time.monotonic()
    with ThreadPoolExecutor(len(requests)) as pool:
        answers = list(pool.map(lambda body: service.answer(endpoint, body), requests))
    seconds = max(1e-3, time.monotonic() - began)
    usages = [answer.get("usage") or {} for answer in answers]
    prompt = sum(usage.get("prompt_tokens") or usage.get("input_tokens") or 0 for usage in usages)
    completion = sum(usage.get("completion_tokens") or usage.get("output_tokens") or 0 for usage in usages)
    basis = f"{len(requests)} rows that were answered for it, at once"
    return _Speed(completion / len(requests), max(1, prompt + completion) / seconds, basis, is_most=True)
