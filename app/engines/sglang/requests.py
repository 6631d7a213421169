"""Requests on a loaded SGLang: each choice is one of SGLang's own, and all their steps come in one line."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import count
from typing import Any

from sglang.srt.entrypoints.engine import Engine
from sglang.srt.managers.io_struct import GenerateReqInput

from app.engines.base import GenerateRequest, StepOutput
from app.engines.sglang.choice import SglangChoice
from app.engines.sglang.convert import drafted, logprob_arguments, sampling_params, translate
from app.engines.sglang.media import Arguments
from app.engines.speculation import Speculation
from app.errors import XylemError
from app.messages.handoff import Rendezvous

# SGLang ends all requests whose id begins with that of the one to be ended: ours have one length.
_ids = (f"xylem-{number:016x}" for number in count())
# Between the rooms of a request's choices: both sides find them, and the prefill's rank, which is the room modulo the
# number of its ranks, is the same for up to 16 of them.
_ROOMS = 720_720


def new_id() -> str:
    return next(_ids)


class Running:
    """One request: what makes its steps, and the line in which they come."""

    def __init__(self) -> None:
        self._line: asyncio.Queue[StepOutput | XylemError] = asyncio.Queue()
        self._open: dict[int, asyncio.Task[None]] = {}  # by choice
        self._begun: set[int] = set()

    @property
    def choices(self) -> int:
        """Number of choices that have not ended."""
        return len(self._open)

    @property
    def begun(self) -> int:
        """Number of choices that have not ended, and have had a token."""
        return len(self._begun & self._open.keys())

    def start(self, index: int, steps: AsyncGenerator[StepOutput, None]) -> None:
        self._open[index] = asyncio.create_task(self._follow(steps))

    async def steps(self) -> AsyncGenerator[StepOutput, None]:
        """Yields steps until all choices have ended. Raises: XylemError."""
        while self._open:
            step = await self._line.get()
            if isinstance(step, XylemError):
                raise step
            if step.index in self._open:  # else it was aborted at its end
                self._begun.add(step.index)
                if step.finish is not None:
                    del self._open[step.index]
                yield step

    def abort(self) -> None:
        for index, task in self._open.items():
            task.cancel()  # which SGLang is told
            self._line.put_nowait(StepOutput("", [], index, "abort"))

    def fail(self, error: XylemError) -> None:
        self._line.put_nowait(error)

    async def end(self) -> None:
        """Nothing of it runs any more."""
        tasks = list(self._open.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._open.clear()

    async def _follow(self, steps: AsyncGenerator[StepOutput, None]) -> None:
        try:
            async with aclosing(steps):
                async for step in steps:
                    self._line.put_nowait(step)
        except Exception as exc:  # noqa: BLE001 (whatever it was, somebody waits)
            self._line.put_nowait(translate(exc))


async def run(
    engine: Engine,
    request: GenerateRequest,
    choice: SglangChoice,
    index: int,
    speculation: Speculation,
    media: asyncio.Future[Arguments] | None = None,
) -> AsyncGenerator[StepOutput, None]:
    """One choice's steps. Closing it aborts. `media`: of all choices.

    Raises: SGLang's errors and ours.
    """
    arguments = {} if media is None else (await asyncio.shield(media))(choice.prompt)
    fields = GenerateReqInput(
        input_ids=choice.prompt,
        sampling_params=sampling_params(choice.sampling, choice.begun),
        rid=new_id(),
        stream=True,
        priority=request.priority,
        cache_salt=request.cache_salt,
        lora_path=request.adapter,
        routed_dp_rank=request.rank if engine.server_args.dp_size > 1 else None,
        external_trace_header=request.trace_headers,
        **logprob_arguments(choice.sampling),
        **_room(request.handoff, index),
        **arguments,
    )
    chunks = engine.tokenizer_manager.generate_request(fields, None)
    async with aclosing(chunks):
        async for chunk in chunks:
            step = choice.step(chunk)
            if step.tokens or step.finish is not None:
                yield step
            if step.finish is not None:
                speculation.add(*drafted(chunk["meta_info"]))
                return


def _room(room: Any, index: int) -> dict[str, Any]:
    if not isinstance(room, Rendezvous):
        return {}
    return {"bootstrap_host": room.host, "bootstrap_port": room.port, "bootstrap_room": room.room + index * _ROOMS}
