"""Pictures as server-sent events, while they are painted."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.http.error_shape import error_event
from app.api.http.sse import Sse, shown_error
from app.dispatch.answering.generation import Generation
from app.openai.image_events import ImageEvents
from app.openai.images import PicturesRequest
from app.openai.picture_answers import Kind


class ImageStream(Response):
    """An error before the first event has its status code, unless `Sse` has sent the headers meanwhile."""

    def __init__(
        self,
        begin: Callable[[], Awaitable[tuple[PicturesRequest, Generation]]],
        kind: Kind,
        within: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`within`: what the answer runs in, once it has begun."""
        self.status_code, self.background = 200, None
        self._begin, self._kind, self._within = begin, kind, within

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with Sse(scope, send, ids=False) as sse:
            try:
                _body, call = await self._begin()
                sse.headers = call.headers
                with self._within():
                    await self._run(call, ImageEvents(call, self._kind), sse)
            except Exception as exc:
                if not sse.started:
                    raise
                await sse.end(error_event(shown_error(exc, scope), scope))

    async def _run(self, call: Generation, events: ImageEvents, sse: Sse) -> None:
        async with call:
            while steps := await call.progress():
                await sse.start()
                await sse.write(b"".join([events.progress(number, step) for number, step in steps]))
                await sse.write(events.completed(set(call.done)))
            await sse.start()
            await sse.end(events.completed(set(call.done)))
