"""What the prefix index would say of prompts, held against what the engine had of them."""

import asyncio
from random import Random

import zmq
import zmq.asyncio

from app.engines.base import KvEventSource
from app.kv.blocks import HASH_BYTES, point_hashes
from app.kv.events import BlockRemoved, decode_batch
from app.kv.hybrid_ledger import HybridLedger
from app.messages import Grid


class Follower:
    """Reads an engine's KV events up to its last answer."""

    def __init__(self, source: KvEventSource, ledger: HybridLedger) -> None:
        self.ledger, self.evicted = ledger, 0
        self._index: set[bytes] = set()
        self._expected = 0  # the number of the next batch
        self._socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        self._socket.connect(source.replay_endpoint)

    async def catch_up(self) -> None:
        """Until an answer brings nothing new twice: between these vLLM's publisher has looked for more."""
        quiet = 0
        while quiet < 2:
            quiet = 0 if await self._replay() else quiet + 1
        if (changes := self.ledger.take()) is not None:
            self._index = (self._index - set(changes.removed)) | set(changes.added)

    async def _replay(self) -> int:
        """How many batches there were."""
        await self._socket.send_multipart((b"", self._expected.to_bytes(8, "big")))
        before = self._expected
        async with asyncio.timeout(60):
            while True:
                _empty, _topic, raw, payload = await self._socket.recv_multipart()
                if int.from_bytes(raw, "big", signed=True) < 0:
                    return self._expected - before
                events = decode_batch(payload).events
                self.evicted += sum(isinstance(event, BlockRemoved) for event in events)
                self.ledger.apply(events)
                self._expected += 1

    def foretold(self, prompt: list[int], lines: Grid) -> int:
        """Tokens of it that the engine need not compute."""
        packed = point_hashes(prompt, lines)
        points = [packed[i : i + HASH_BYTES] for i in range(0, len(packed), HASH_BYTES)]
        if lines.everywhere:
            return next((i for i, point in enumerate(points) if point not in self._index), len(points)) * lines.step
        return max((i for i, point in enumerate(points, 1) if point in self._index), default=0) * lines.step

    def close(self) -> None:
        self._socket.close(linger=0)


def prompts(random: Random, count: int, most: int = 950) -> list[list[int]]:
    """As a fleet has them: shared beginnings, conversations that go on, repetitions, branches; up to `most` tokens."""

    def words(longest: int) -> list[int]:
        return [random.randrange(10, 40_000) for _ in range(random.randrange(5, longest))]

    roots, found = [words(700) for _ in range(3)], list[list[int]]()
    for _ in range(count):
        last = found[-6:] or roots
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
        found.append(prompt[:most])
    return found
