"""Answers that may be long, made from what is kept: a client that asks for many takes little memory."""

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.bounded.held_bytes import HeldBytes

_PIECE = 2**16  # bytes


class LongResponse(Response):
    """JSON that is sent in pieces, and counts as its client's bytes until the client has taken it."""

    def __init__(self, raw: bytes, held_bytes: HeldBytes) -> None:
        super().__init__(raw, media_type="application/json")
        self._held = held_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises: Saturated, before anything is sent."""
        raw = self.body
        if len(raw) <= _PIECE:
            await super().__call__(scope, receive, send)
            return
        with self._held.room(len(raw)):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for at in range(0, len(raw), _PIECE):  # each waits until the client has taken most of those before it
                await send({"type": "http.response.body", "body": raw[at : at + _PIECE], "more_body": True})
            await send({"type": "http.response.body", "body": b""})
