"""Compares what the prefix index would say of prompts with what the engine had of them."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Sequence
from itertools import cycle
from random import Random
from typing import NamedTuple

import zmq
import zmq.asyncio

from app.engines.base import KvEventSource
from app.kv.blocks import HASH_BYTES, point_hashes
from app.kv.events import BlockRemoved, KvBatch, decode_batch
from app.kv.groups import grid
from app.kv.hybrid_ledger import HybridLedger
from app.messages.lease import CacheGroup, Grid
from ops.models.loaded import Loaded, answer, request


class Audit(NamedTuple):
    wrong: int  # prompts of which too much or too little was foretold
    off: int  # by how many tokens, in all
    cached: int  # tokens
    evicted: int  # times that blocks were
    unknown: int  # blocks that the index can't place


async def audit(it: Loaded, groups: list[CacheGroup], asked: list[list[int]], lengths: Sequence[int] = (4,)) -> Audit:
    """Audits the prompts `asked`. `lengths`: of answers, in turn. Raises: XylemError."""
    lines = grid(groups)
    assert lines is not None
    had = list[tuple[float, int]]()
    follower = Follower(it.engine.kv_events()[0], HybridLedger(groups))
    try:
        for prompt, length in zip(asked, cycle(lengths), strict=False):
            began = time.time()
            had.append((began, (await answer(it.engine, request(prompt, length)))[0].cached_tokens))
            if it.tells_late:
                await follower.read()
        await follower.read()
    finally:
        follower.close()
    wrong = off = 0
    for prompt, (began, cached_tokens) in zip(asked, had, strict=True):
        follower.go_to(began)
        expected_tokens = follower.foretold(prompt, lines)
        wrong, off = wrong + (cached_tokens != expected_tokens), off + abs(cached_tokens - expected_tokens)
    follower.go_to(math.inf)
    return Audit(wrong, off, sum(cached_tokens for _, cached_tokens in had), follower.evicted, follower.ledger.unknown)


class Follower:
    """Reads an engine's KV events, and goes through them."""

    def __init__(self, source: KvEventSource, ledger: HybridLedger) -> None:
        self.ledger, self.evicted = ledger, 0
        self._batches = deque[KvBatch]()
        self._index: set[bytes] = set()
        self._expected = 0  # the number of the next batch
        self._socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        self._socket.connect(source.replay_endpoint)

    async def read(self) -> None:
        """Reads until a reply brings nothing new: between two, a publisher waits for more, a tenth of a second."""
        await self._replay()
        while await self._replay():
            pass

    def go_to(self, moment: float) -> None:
        """The state of what was told before it."""
        while self._batches and self._batches[0].ts < moment:
            events = self._batches.popleft().events
            self.evicted += sum(isinstance(event, BlockRemoved) for event in events)
            self.ledger.apply(events)
        if (changes := self.ledger.take()) is not None:
            self._index = (self._index - set(changes.removed)) | set(changes.added)

    async def _replay(self) -> int:
        """Reads the batches that there are, and returns their number."""
        await self._socket.send_multipart((b"", self._expected.to_bytes(8, "big")))
        before = self._expected
        async with asyncio.timeout(60):
            while True:
                _empty, _topic, raw, payload = await self._socket.recv_multipart()
                if int.from_bytes(raw, "big", signed=True) < 0:
                    return self._expected - before
                self._batches.append(decode_batch(payload))
                self._expected += 1

    def foretold(self, prompt: list[int], lines: Grid) -> int:
        """Tokens of it that the engine need not compute."""
        hashes = point_hashes(prompt, lines)
        points = [hashes[i : i + HASH_BYTES] for i in range(0, len(hashes), HASH_BYTES)]
        if lines.everywhere:
            return next((i for i, point in enumerate(points) if point not in self._index), len(points)) * lines.step
        return max((i for i, point in enumerate(points, 1) if point in self._index), default=0) * lines.step

    def close(self) -> None:
        self._socket.close(linger=0)


def prompts(random: Random, count: int, most: int = 950) -> list[list[int]]:
    """Prompts like a fleet's, of up to `most` tokens.

    They have shared beginnings, conversations that go on, repetitions and branches.
    """

    def words(longest: int) -> list[int]:
        return [random.randrange(10, 40_000) for _ in range(random.randrange(5, longest))]

    roots, results = [words(700) for _ in range(3)], list[list[int]]()
    for _ in range(count):
        last = results[-6:] or roots
        match random.randrange(10):
            case 0 | 1 | 2:
                prompt = random.choice(last) + words(200)
            case 3 | 4 | 5 | 6:
                prompt = random.choice(roots) + words(300)
            case 7:
                prompt = random.choice(last)
            case 8:
                branch = random.choice(last)
                prompt = branch[: random.randrange(len(branch) // 2, len(branch))] + words(60)
            case _:
                prompt = words(600)
        results.append(prompt[:most])
    return results
