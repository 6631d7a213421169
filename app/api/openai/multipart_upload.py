"""A file that comes as a form: it is written to disk while it comes, and is never whole in memory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import orjson
from fastapi import Request
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope

from app.errors import BodyTooLarge, Cancelled, RequestError
from app.openai.batch_schemas import ExpiresAfter
from app.openai.body import Body
from app.openai.validation import parse

_FORM = 64 * 2**10  # bytes of a form besides its file
_FIELD = 2**10  # bytes of another field
_EXPIRES = {"expires_after[anchor]": "anchor", "expires_after[seconds]": "seconds"}

MULTIPART: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "additionalProperties": False,
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": ["batch"]},
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2592000},
                    },
                }
            }
        },
    }
}


class Fields(Body):
    """The form's other fields."""

    purpose: Literal["batch"]
    expires_after: ExpiresAfter | None = None


@asynccontextmanager
async def received(request: Request, limit: int) -> AsyncIterator[tuple[UploadFile, Fields]]:
    """The file, which is deleted afterwards, and the form's other fields. Raises: XylemError."""
    receive = _bounded(request.scope, request.receive, limit)
    form = Request(request.scope, receive).form(max_files=1, max_fields=8, max_part_size=_FIELD)
    try:
        content = await form
    except HTTPException as exc:
        raise RequestError(f"The body has to be a form with a file: {exc.detail}") from exc
    except ClientDisconnect as exc:
        raise Cancelled from exc
    try:
        file = content.get("file")
        fields = _fields({name: value for name, value in content.items() if name != "file"})
        if not isinstance(file, UploadFile):
            raise RequestError("'file' is missing: the body has to be multipart/form-data with a file.", param="file")
        if (file.size or 0) > limit:
            raise _too_large(limit)
        yield file, fields
    finally:
        await content.close()


def _fields(given: dict[str, Any]) -> Fields:
    """Raises: RequestError that names the field."""
    if not all(isinstance(value, str) for value in given.values()):
        raise RequestError("There may be one file only, 'file'.", param="file")
    fields: dict[str, Any] = {name: value for name, value in given.items() if name not in _EXPIRES}
    expires = {_EXPIRES[name]: _number(value) for name, value in given.items() if name in _EXPIRES}
    return parse(Fields, orjson.dumps(fields | ({"expires_after": expires} if expires else {})))


def _number(text: str) -> str | int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text


def _bounded(scope: Scope, receive: Receive, limit: int) -> Receive:
    """`receive` with a bound. Raises: BodyTooLarge, before a byte is read if the length is given, else later."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > limit + _FORM:
            raise _too_large(limit)
    count = 0

    async def counted() -> Message:
        nonlocal count
        message = await receive()
        count += len(message.get("body", b""))
        if count > limit + _FORM:
            raise _too_large(limit)
        return message

    return counted


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The file is over the limit of {limit} bytes.", param="file")
