"""Pictures as server-sent events, while they are painted."""

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.http.error_shape import error_event
from app.api.http.sse import Sse
from app.dispatch.generation import Generation
from app.openai.image_events import ImageEvents, Kind


class ImageStream(Response):
    """An error before the first event has its status code, unless `Sse` has sent the headers meanwhile."""

    def __init__(self, call: Generation, kind: Kind) -> None:
        self.status_code, self.background = 200, None
        self._call, self._events = call, ImageEvents(call, kind)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 (the call watches it)
        with Sse(scope, send, ids=False) as sse:
            sse.headers = self._call.headers
            try:
                await self._run(sse)
            except Exception as exc:
                if not sse.started:
                    raise
                await sse.end(error_event(sse.error(exc), scope))

    async def _run(self, sse: Sse) -> None:
        async with self._call as call:
            while steps := await call.progress():
                await sse.start()
                await sse.write(b"".join([self._events.progress(number, step) for number, step in steps]))
                await sse.write(self._events.completed(set(call.done)))
            await sse.start()
            await sse.end(self._events.completed(set(call.done)))
