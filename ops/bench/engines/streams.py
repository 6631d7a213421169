"""Streams chats over HTTP with the load generator's connections."""

import asyncio
import time
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import uvloop

from ops.bench.disagg.play import KeepingId
from ops.bench.loadgen.connection import http_request
from ops.bench.loadgen.prompts import words
from ops.bench.processes import Unavailable

_LIMIT_S = 300.0


@dataclass(frozen=True)
class Answer:
    """An answer as the client saw it; times in seconds since the epoch."""

    id: str
    sent: float
    first: float  # its first token arrived
    ended: float
    tokens: int


def chats(models: Sequence[str], count: int, tokens: int, seed: int) -> list[dict[str, Any]]:
    """Bodies, for the models in turn; prompts of 40 words that are different for each seed."""
    random = Random(seed)
    return [
        {
            "model": models[i % len(models)], "messages": [{"role": "user", "content": words(random, 40)}],
            "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
            "stream": True, "stream_options": {"include_usage": True},
        }
        for i in range(count)
    ]  # fmt: skip


def stream_all(url: str, bodies: Sequence[dict[str, Any]], at_a_time: int) -> list[Answer]:
    """Blocks until the last answer. Raises: Unavailable when one fails, or has another number of tokens."""
    queue, answers = iter(bodies), list[Answer]()

    async def several() -> None:
        for body in queue:
            answers.append(await _stream(url, body))

    async def run() -> None:
        await asyncio.gather(*(several() for _ in range(at_a_time)))

    uvloop.run(run())
    return answers


def stream_at(url: str, bodies: Sequence[dict[str, Any]], at: Sequence[float]) -> list[Answer]:
    """Each is asked for at its time, in seconds from now. Blocks and raises as `stream_all`."""

    async def one(body: dict[str, Any], delay_s: float) -> Answer:
        await asyncio.sleep(delay_s)
        return await _stream(url, body)

    async def run() -> list[Answer]:
        return await asyncio.gather(*map(one, bodies, at))

    return uvloop.run(run())


def tokens_per_s(answers: Sequence[Answer]) -> float:
    """Tokens a second, from the first request to the last token."""
    return sum(a.tokens for a in answers) / (max(a.ended for a in answers) - min(a.sent for a in answers))


async def _stream(url: str, body: dict[str, Any]) -> Answer:
    """Raises: Unavailable."""
    parts, loop = urllib.parse.urlsplit(url), asyncio.get_running_loop()
    _, c = await loop.create_connection(KeepingId, parts.hostname, parts.port)
    epoch = time.time() - time.perf_counter()  # the connection's times are of the latter
    try:
        r = await asyncio.wait_for(c.send(http_request("/v1/chat/completions", parts.netloc, body)), _LIMIT_S)
    except TimeoutError:
        raise Unavailable(f"{url}: an answer took over {_LIMIT_S:.0f} s") from None
    c.close()
    if r.error is not None or r.tokens != body["max_tokens"]:
        raise Unavailable(f"{url}: {r.error or f'an answer has {r.tokens} tokens'}")
    return Answer(c.id, epoch + r.start, epoch + r.first, epoch + r.end, r.tokens)
