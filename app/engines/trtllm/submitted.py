"""A request that TensorRT-LLM has, and how it is aborted."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from tensorrt_llm.llmapi.llm import RequestOutput

from app.errors import EngineFailed


class Submitted:
    """A request of TensorRT-LLM's.

    One that pulls KV is aborted behind its first token: before, other KV could come where the transfer still writes.
    """

    def __init__(self, result: RequestOutput, *, pulls: bool) -> None:
        self._result, self._pulls, self._aborted, self._over = result, pulls, False, False

    def abort(self) -> None:
        self._aborted = True
        if not self._pulls and not self._over:
            self._result.abort()

    async def updates(self) -> AsyncGenerator[RequestOutput, None]:
        async for update in self._result:
            self._over = update.finished
            if update.error is not None:
                raise EngineFailed(f"TensorRT-LLM failed: {update.error}")
            if self._pulls:
                self._pulls = False
                if self._aborted:
                    self.abort()
            yield update

    def leave(self, tasks: set[asyncio.Task[None]]) -> None:
        """Nobody listens any more."""
        if self._over:
            return
        self.abort()
        if self._pulls:
            task = asyncio.create_task(self._drain(), name="trtllm-abort")
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _drain(self) -> None:
        async with aclosing(self.updates()) as updates:
            async for _ in updates:
                pass
