"""A process of the load generator: its share of the requests, over its share of the connections."""

import asyncio
import json
import resource
import time
import urllib.parse
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

import uvloop

from ops.bench.loadgen.connection import Answer, Connection, http_request
from ops.bench.loadgen.prompts import Kind, prompts


@dataclass(frozen=True, kw_only=True)
class Load:
    """Fields are the options of the command line."""

    base_url: str
    model: str
    path: str = "/v1/chat/completions"
    concurrency: int = 1
    requests: int = 100
    max_seconds: float = 60.0
    timeout: float = 60.0
    prompt: Kind = "short"
    prompt_words: int = 2000
    suffix_words: int = 50
    groups: int = 40
    seed: int = 1
    max_tokens: int = 1
    stream: bool = False
    extra_body: str = "{}"
    procs: int = 1

    def payloads(self, count: int, tag: str = "") -> list[bytes]:
        """HTTP requests, the same for the same seed and tag."""
        random = Random(f"{self.seed}/{tag}")
        texts = prompts(self.prompt, count, random, self.prompt_words, self.groups, self.suffix_words)
        return [self._payload(text) for text in texts]

    def _payload(self, text: str) -> bytes:
        body: dict[str, Any] = {
            "model": self.model, "messages": [{"role": "user", "content": text}], "max_tokens": self.max_tokens,
            "temperature": 0,
        }  # fmt: skip
        if self.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        host = urllib.parse.urlsplit(self.base_url).netloc
        return http_request(self.path, host, body | json.loads(self.extra_body))


@dataclass
class Share:
    """The results of one process; times in seconds."""

    began: float
    ended: float
    cpu_s: float = 0.0
    errors: list[str] = field(default_factory=list)
    answers: int = 0
    tokens: int = 0
    events: int = 0
    reads: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    ttft: "array[float]" = field(default_factory=lambda: array("d"))
    whole: "array[float]" = field(default_factory=lambda: array("d"))
    gaps: "array[float]" = field(default_factory=lambda: array("d"))  # between texts; 0: they came in one read
    per_token: "array[float]" = field(default_factory=lambda: array("d"))  # of each answer, behind its first one

    def add(self, answer: Answer) -> None:
        if answer.error is not None:
            self.errors.append(answer.error)
            return
        self.answers += 1
        self.tokens += answer.tokens
        self.events += answer.events
        self.reads += len(answer.times)
        self.prompt_tokens += answer.prompt
        self.cached_tokens += answer.cached
        self.ttft.append(answer.first - answer.start)
        self.whole.append(answer.end - answer.start)
        earlier = None
        for at, texts in answer.times:
            if earlier is not None:
                self.gaps.append(at - earlier)
            self.gaps.extend([0.0] * (texts - 1))
            earlier = at
        if answer.tokens > 1:
            self.per_token.append((answer.end - answer.first) / (answer.tokens - 1))


class Barrier(Protocol):
    def wait(self) -> int: ...

    def abort(self) -> None: ...


def run(load: Load, index: int, barrier: Barrier, results: Any) -> None:
    """Puts the share of process `index` into the queue `results`; None: it failed.

    Waits twice: until all are ready, and until they may begin.
    """
    try:
        payloads = load.payloads(load.requests)[index :: load.procs]
        barrier.wait()
        barrier.wait()
        results.put(asked(load, payloads, len(range(index, load.concurrency, load.procs))))
    except BaseException:
        barrier.abort()
        results.put(None)  # who waits for it ends, too
        raise


def asked(load: Load, payloads: Sequence[bytes], connections: int) -> Share:
    """Blocks until all are answered, or `max_seconds` are over."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    share = uvloop.run(_ask(load, iter(payloads), connections))
    after = resource.getrusage(resource.RUSAGE_SELF)
    share.cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return share


async def _ask(load: Load, payloads: Iterator[bytes], connections: int) -> Share:
    share = Share(began := time.perf_counter(), began)
    await asyncio.gather(*(_loop(load, payloads, share) for _ in range(connections)))
    share.ended = time.perf_counter()
    return share


async def _loop(load: Load, payloads: Iterator[bytes], share: Share) -> None:
    """One connection: a request as soon as the one before is answered."""
    url, loop = urllib.parse.urlsplit(load.base_url), asyncio.get_running_loop()
    connection: Connection | None = None
    for payload in payloads:
        if time.perf_counter() > share.began + load.max_seconds:
            break
        start = time.perf_counter()
        try:
            if connection is None or connection.closed:
                _, connection = await loop.create_connection(
                    lambda: Connection(load.stream), url.hostname, url.port or 80
                )
            share.add(await asyncio.wait_for(connection.send(payload), load.timeout))
        except (OSError, TimeoutError) as exc:
            share.add(Answer(start, end=time.perf_counter(), error=f"{type(exc).__name__}: {exc}"))
            if connection is not None:
                connection.abort()
            connection = None
    if connection is not None:
        connection.close()
