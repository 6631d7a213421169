"""Reading a request's body, bounded."""

from starlette.types import Receive, Scope

from app.errors import BodyTooLarge, Cancelled


async def collect(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body. Raises: BodyTooLarge, before a byte is read when its length is given; Cancelled."""
    too_large = BodyTooLarge(f"The request's body is over the limit of {limit} bytes.")
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > limit:
            raise too_large
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Cancelled
        body += message.get("body", b"")
        if len(body) > limit:
            raise too_large
        if not message.get("more_body", False):
            return bytes(body)
