"""An engine under test, and what the tests ask of it again and again."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import psutil
import zmq
import zmq.asyncio

from app.engines.base import Engine, EngineInfo, EngineStats, GenerateRequest, PrefixResetter, StepOutput
from app.ids import RequestId
from app.kv.events import decode_batch
from app.kv.ledger import Ledger
from app.messages.job import Sampling
from app.messages.kinds import FinishReason
from app.tokenizing.tokenizer import Tokenizer

_ids = count()


@dataclass
class Answer:
    """One choice, put together."""

    outputs: list[StepOutput] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(output.text for output in self.outputs)

    @property
    def tokens(self) -> list[int]:
        return [token for output in self.outputs for token in output.tokens]

    @property
    def finish(self) -> FinishReason | None:
        return self.outputs[-1].finish

    @property
    def stop(self) -> int | str | None:
        return self.outputs[-1].stop

    @property
    def cached_tokens(self) -> int:
        return self.outputs[0].cached_tokens


@dataclass
class Subject:
    name: str
    engine: Engine
    info: EngineInfo
    tokenizer: Tokenizer
    processes: set[psutil.Process]  # that it has started
    soon_s: float  # by when what was ended has ended, also on a busy machine: it would have gone on for longer

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def chat(self, question: str) -> list[int]:
        return self.encode(self.tokenizer.render_chat([{"role": "user", "content": question}]))

    def request(self, prompt: str | list[int], *, priority: int = 0, **sampling: Any) -> GenerateRequest:
        """Greedy and eight tokens unless told otherwise."""
        ids = self.encode(prompt) if isinstance(prompt, str) else prompt
        settings = {"max_tokens": 8, "temperature": 0.0} | sampling
        return GenerateRequest(RequestId(f"test-{next(_ids)}"), ids, Sampling(**settings), priority)

    def stream(self, prompt: str | list[int], **settings: Any) -> AsyncGenerator[StepOutput, None]:
        return self.engine.generate(self.request(prompt, **settings))

    async def choices(self, prompt: str | list[int], **settings: Any) -> list[Answer]:
        answers: dict[int, Answer] = {}
        async for output in self.stream(prompt, **settings):
            answers.setdefault(output.index, Answer()).outputs.append(output)
        return [answers[index] for index in sorted(answers)]

    async def answer(self, prompt: str | list[int], **settings: Any) -> Answer:
        [choice] = await self.choices(prompt, **settings)
        return choice

    async def replayed(self, rank: int = 0) -> Ledger:
        """The ledger of all KV events that a rank has published so far."""
        source = self.engine.kv_events()[rank]
        ledger = Ledger(self.info.block_size, source.own_keys, source.pictures)
        with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as replay:
            replay.connect(source.replay_endpoint)
            await replay.send_multipart((b"", bytes(8)))
            async with asyncio.timeout(20):
                while True:
                    _empty, _topic, number, payload = await replay.recv_multipart()
                    if int.from_bytes(number, "big", signed=True) < 0:
                        return ledger
                    ledger.apply(decode_batch(payload).events)

    async def ledger_becomes(self, wanted: Callable[[set[bytes]], bool], rank: int = 0) -> Ledger:
        """`wanted`: of the blocks. Engines publish a moment later, in a thread."""
        deadline = time.monotonic() + 30
        while not wanted(set((ledger := await self.replayed(rank)).blocks())):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        return ledger

    async def clear(self) -> None:
        """Clears the prefix cache; the engine refuses while blocks are held."""
        deadline = time.monotonic() + self.soon_s
        assert isinstance(self.engine, PrefixResetter)
        while not await self.engine.reset_prefix_cache():
            assert time.monotonic() < deadline

    async def stats_become(self, wanted: Callable[[EngineStats], bool], *, within_s: float) -> EngineStats:
        deadline = time.monotonic() + within_s
        while not wanted(stats := self.engine.stats()):
            assert time.monotonic() < deadline, f"after {within_s} s: {stats}"
            await asyncio.sleep(0.005)
        return stats
