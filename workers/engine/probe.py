"""Probes whether an engine computes, with a request for nobody: the least of what its pool's task and role are about.

It leaves nothing. Its prompt fills no KV block, so no cache keeps it and no event tells of it, unless blocks have one
token: then it is the same block each time. The runner doesn't measure it, and `Runner.probed` takes it off the worker's
metrics.
"""

import asyncio
from contextlib import aclosing
from hashlib import sha256
from itertools import count
from typing import cast

from msgspec.structs import replace

from app.engines.base import (
    Encoder,
    EncodeRequest,
    Engine,
    GenerateRequest,
    MediaInput,
    PictureEncoder,
    PictureRequest,
    Prober,
    silence,
)
from app.errors import EngineFailed
from app.ids import RunId
from app.messages.job import Painting, Sampling
from app.messages.media import Media
from app.painters.base import Painted, Painter, PaintRequest
from app.pools.schema import PaintRules, Pool, parse_size
from app.runner.runner import Runner

TOKEN = 1  # any: every vocabulary has it
_FIRST = -(2**31)  # its priority: with one token it is no delay to others, and they may be one to it
_ONE_TOKEN = Sampling(max_tokens=1, temperature=0.0, ignore_eos=True)
_UNTRACED = {"traceparent": f"00-{'1' * 32}-{'1' * 16}-00"}  # engines would begin a trace, as for a request without
_SIDE = 64  # pixels of the picture to be encoded: models that see make it larger


class Probe:
    def __init__(self, runner: Runner, pool: Pool) -> None:
        self._runner, self._pool = runner, pool
        self._numbers = count()  # one that was given up may still be on its way out of the engine

    async def __call__(self, within_s: float | None = None) -> None:
        """Probes each rank. Raises: EngineFailed, and RequestError if the engine refuses it."""
        try:
            async with asyncio.timeout(within_s):
                for rank in range(len(self._runner.gates)):
                    run = RunId(f"probe-{self._runner.worker}.{next(self._numbers)}")
                    with self._runner.probed.asked(self._work):
                        await self._ask(run, rank)
        except TimeoutError:
            raise EngineFailed("It gave no answer in time.") from None

    @property
    def _work(self) -> int:
        """Prompt tokens, or steps of painting, that the engine counts for one probe."""
        if self._pool.role == "encode":
            return 0
        if self._pool.task in ("image", "embed", "classify"):
            return 1
        return len(self._prompt) if self._runner.computes else 0

    @property
    def _prompt(self) -> list[int]:
        """Two tokens where these fill no block: Qwen3.5's convolution on a CPU ends an engine for one."""
        listens, small = self._pool.task == "transcribe", self._runner.info.block_size <= 2
        return [TOKEN] if listens or small else [TOKEN, TOKEN]

    async def _ask(self, run: RunId, rank: int) -> None:
        engine, pool = self._runner.engine, self._pool
        if pool.task == "image":
            await _paint(self._runner.painter, PaintRequest(run, _painting(pool.painting), _FIRST))
        elif pool.role == "encode":
            await cast(PictureEncoder, engine).encode_picture(PictureRequest(run, _picture(), [], _UNTRACED))
        elif pool.task in ("embed", "classify"):
            text = EncodeRequest(run, [[TOKEN]], pool.task, None, priority=_FIRST, rank=rank, trace_headers=_UNTRACED)
            if not await cast(Encoder, engine).encode(text):
                raise EngineFailed("It made no vector.")
        else:
            media = [silence()] if pool.task == "transcribe" else []
            request = GenerateRequest(run, self._prompt, _ONE_TOKEN, _FIRST, rank, media=media, trace_headers=_UNTRACED)
            await compute(engine, request)


async def compute(engine: Engine, request: GenerateRequest) -> None:
    """Computes the request without another engine, and for nobody. Raises: EngineFailed."""
    if isinstance(engine, Prober):
        await engine.probe(request)
        return
    finish = None
    async with aclosing(engine.generate(request)) as steps:
        async for step in steps:
            finish = step.finish
    if finish in (None, "abort"):
        raise EngineFailed("It made no token.")


async def _paint(painter: Painter, request: PaintRequest) -> None:
    async with aclosing(painter.paint(request)) as steps:
        if not [step async for step in steps if isinstance(step, Painted)]:
            raise EngineFailed("It painted nothing.")


def _painting(rules: PaintRules) -> Painting:
    """One step, of the size that requests have: engines may compile for each size anew."""
    width, height = parse_size(rules.size)
    one = Painting("", width, height, steps=1, seed=0)
    return replace(one, format="mp4", frames=1, fps=rules.fps) if rules.videos else one


def _picture() -> MediaInput:
    data = bytes(3 * _SIDE * _SIDE)
    return MediaInput(Media("image", sha256(data).hexdigest(), (_SIDE, _SIDE)), data)
