"""Reading a request's body, bounded."""

from fastapi import Request

from app.api.schemas import B, parse
from app.errors import BodyTooLarge


async def read(request: Request, schema: type[B], limit: int) -> B:
    """The parsed body. Raises: BodyTooLarge before it is read when its length is given, RequestError."""
    too_large = BodyTooLarge(f"The request's body is over the limit of {limit} bytes.")
    length = request.headers.get("content-length", "")
    if length.isdecimal():
        if int(length) > limit:
            raise too_large
        return parse(schema, await request.body())
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise too_large
        parts.append(part)
    return parse(schema, b"".join(parts))
