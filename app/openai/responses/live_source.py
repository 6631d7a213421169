"""A response that is not kept, read as if it were."""

import asyncio
from collections.abc import Callable

from app.dispatch.answering.generation import Generation
from app.errors import Cancelled, XylemError
from app.messages.events import Done, Event, Failed
from app.store import clock


class LiveSource:
    """Reads a Generation that has been entered."""

    def __init__(self, call: Generation) -> None:
        self.call, self._over = call, False

    async def apart(self, write: Callable[[], bytes]) -> bytes:
        """The result of what takes long, in a thread."""
        return await asyncio.to_thread(write)

    async def batch(self) -> list[Event]:
        """The next events, as in `EventLog.batch`. Raises: Cancelled when the client has left."""
        if self._over:
            return []
        call = self.call
        try:
            deltas = await call.deltas()
        except Cancelled:
            raise
        except XylemError as exc:
            self._over = True
            call.failed(exc)
            return [Failed(call.id, 0, exc.code, exc.message, exc.param)]
        for _, delta in deltas:
            call.count(delta)
        if not deltas:
            self._over = True
            return [Done(call.id, 0, call.cached_tokens, prompt_tokens=call.prompt_tokens, ended=clock.now())]
        return [delta for _, delta in deltas]
