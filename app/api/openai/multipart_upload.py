"""A file that comes as a form: it is written to disk while it comes, and is never whole in memory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import orjson
from fastapi import Request
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope

from app.api.http.incoming import share_of
from app.api.intake.request_body import given_length
from app.endpoints import LARGE
from app.errors import BodyTooLarge, Cancelled, RequestError, UnsupportedMediaType, XylemError
from app.openai.batch_schemas import ExpiresAfter
from app.schemas.body import Body
from app.schemas.validation import parse
from app.tenants.admission import admitted

FORM = 64 * 2**10  # bytes of a form besides its file
_FIELD = 2**10  # bytes of another field
_CHARSETS = {"utf-8", "utf8", "us-ascii", "iso-8859-1"}
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
                        "purpose": {"type": "string", "enum": ["batch", "vision", "user_data"]},
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

    purpose: Literal["batch", "vision", "user_data"]  # the last two: pictures of requests
    expires_after: ExpiresAfter | None = None


@asynccontextmanager
async def received(request: Request, limit: int) -> AsyncIterator[tuple[UploadFile, Fields]]:
    """The file, which is deleted afterwards, and the form's other fields. Raises: XylemError."""
    async with received_form(request, limit, BodyTooLarge, "XYLEM_MAX_FILE") as (file, pairs):
        yield file, _fields(dict(pairs))


@asynccontextmanager
async def received_form(
    request: Request, limit: int, too_large: type[BodyTooLarge | RequestError], setting: str, field_size: int = _FIELD
) -> AsyncIterator[tuple[UploadFile, list[tuple[str, str]]]]:
    """The file, which is deleted afterwards, and the other fields, some of which may come again.

    `too_large`: the error for a file of more than `limit` bytes, which `setting` says. Raises: XylemError.
    """
    error = too_large(f"The file is over the limit of {limit} bytes ({setting}).", param="file")
    receive = bounded(request.scope, request.receive, limit, error)
    form = in_utf8(Request(request.scope, receive)).form(max_files=1, max_fields=32, max_part_size=field_size)
    try:
        content = await form
    except HTTPException as exc:
        raise RequestError(f"The body has to be a form with a file: {exc.detail}") from exc
    except ClientDisconnect as exc:
        raise Cancelled from exc
    try:
        file = content.get("file")
        fields = [(name, value) for name, value in content.multi_items() if name != "file"]
        if not isinstance(file, UploadFile):
            raise RequestError("'file' is missing: the body has to be multipart/form-data with a file.", param="file")
        texts = [(name, value) for name, value in fields if isinstance(value, str)]
        if len(texts) < len(fields):
            raise RequestError("There may be one file only, 'file'.", param="file")
        if (file.size or 0) > limit:
            raise error
        yield file, texts
    finally:
        await content.close()


def in_utf8(form: Request) -> Request:
    """The form itself. Raises: UnsupportedMediaType if it names another charset: any codec that Python has, perhaps.

    Some of them make texts that are none, raise what nobody expects, or take long.
    """
    _, options = parse_options_header(form.headers.get("content-type"))
    charset = options.get(b"charset", b"utf-8").decode("latin-1")
    if charset.lower() not in _CHARSETS:
        raise UnsupportedMediaType(f"A form's charset has to be utf-8, not {charset[:64]!r}.")
    return form


def _fields(form: dict[str, Any]) -> Fields:
    """Raises: RequestError that names the field."""
    fields: dict[str, Any] = {name: value for name, value in form.items() if name not in _EXPIRES}
    expires = {_EXPIRES[name]: _number(value) for name, value in form.items() if name in _EXPIRES}
    return parse(Fields, orjson.dumps(fields | ({"expires_after": expires} if expires else {})))


def _number(text: str) -> str | int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text


def bounded(scope: Scope, receive: Receive, limit: int, error: XylemError | None = None) -> Receive:
    """`receive` with a bound of a form's file.

    Raises: `error`, or else BodyTooLarge, before a byte is read if the length is given, else later.
    """
    error = error or BodyTooLarge(f"The file is over the limit of {limit} bytes.", param="file")
    if (length := given_length(scope)) is not None and length > limit + FORM:
        raise error
    count, share = 0, share_of(scope)

    async def counted() -> Message:
        nonlocal count
        message = await receive()
        count += len(message.get("body", b""))
        if count > limit + FORM:
            raise error
        if count > LARGE:
            await admitted()
            if share is not None:
                share.grow(count)
        return message

    return counted
