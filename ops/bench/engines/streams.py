"""Streams chats over HTTP, a fixed number at a time, with the load generator's connections."""

import asyncio
import json
import time
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import uvloop

from ops.bench.disagg.play import keeping_id, loadgen
from ops.bench.processes import Unavailable

_LIMIT_S = 300.0


@dataclass(frozen=True)
class Answer:
    """As the client saw it; times in seconds since the epoch."""

    id: str
    sent: float
    first: float  # its first token arrived
    ended: float
    tokens: int


def chats(models: Sequence[str], count: int, tokens: int, seed: int) -> list[dict[str, Any]]:
    """Bodies, for the models in turn; prompts of 40 words that are different for each seed."""
    words, random = loadgen().words, Random(seed)
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
    answers = uvloop.run(_stream_all(url, bodies, at_a_time))
    wrong = {a.tokens for a in answers} - {body["max_tokens"] for body in bodies}
    if wrong:
        raise Unavailable(f"{url}: answers of {wrong} tokens")
    return answers


def tokens_per_s(answers: Sequence[Answer]) -> float:
    """From the first request to the last token."""
    return sum(a.tokens for a in answers) / (max(a.ended for a in answers) - min(a.sent for a in answers))


async def _stream_all(url: str, bodies: Sequence[dict[str, Any]], at_a_time: int) -> list[Answer]:
    conn, parts, left = loadgen().Conn, urllib.parse.urlsplit(url), iter(bodies)
    epoch = time.time() - time.perf_counter()  # the connections' times are of the latter
    answers: list[Answer] = []

    async def one() -> None:
        for body in left:
            _, c = await asyncio.get_running_loop().create_connection(
                lambda: keeping_id(conn), parts.hostname, parts.port
            )
            r = await asyncio.wait_for(c.send(_request(parts.netloc, body)), _LIMIT_S)
            c.transport.close()
            if r.error is not None:
                raise Unavailable(f"{url}: {r.error}")
            answers.append(Answer(c.id, epoch + r.start, epoch + r.first, epoch + r.end, r.tokens))

    await asyncio.gather(*(one() for _ in range(at_a_time)))
    return answers


def _request(host: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json"
    return f"{head}\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content
