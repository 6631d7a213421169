"""A request that comes as a form: its fields as a JSON document, and its small files in memory."""

from typing import Any

from fastapi import Request
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from app import json_bytes
from app.api.intake.request_body import collect
from app.api.openai.multipart_upload import bounded, in_utf8
from app.api.state import state_of
from app.errors import Cancelled, RequestError
from app.openai.schemas import ModelRequest
from app.schemas.form_values import form_value

_FIELDS, _FILES = 32, 17  # at most
_FIELD = 64 * 2**10  # bytes of one


async def read_form(request: Request) -> tuple[bytes, dict[str, list[bytes]]]:
    """The fields as JSON, and files by their fields' names. A body that is JSON is taken as it is.

    Raises: RequestError, UnsupportedMediaType, BodyTooLarge, Cancelled.
    """
    limit = state_of(request).settings.max_body
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        return await collect(request.scope, request.receive, limit), {}
    receive = bounded(request.scope, request.receive, limit)
    form = in_utf8(Request(request.scope, receive)).form(max_files=_FILES, max_fields=_FIELDS, max_part_size=_FIELD)
    try:
        content = await form
    except HTTPException as exc:
        raise RequestError(f"The form can't be read: {exc.detail}") from exc
    except ClientDisconnect as exc:
        raise Cancelled from exc
    fields: dict[str, Any] = {}
    files: dict[str, list[bytes]] = {}
    try:
        for name, value in content.multi_items():
            if isinstance(value, UploadFile):
                files.setdefault(name.removesuffix("[]"), []).append(await value.read())
            elif name in fields:
                raise RequestError(f"'{name[:100]}' is there twice.", param=name[:100])
            else:
                fields[name] = form_value(name, value)
    finally:
        await content.close()
    return json_bytes.dumps(fields), files


def form_schema(schema: type[ModelRequest], file: str, *others: str) -> dict[str, Any]:
    """The `openapi_extra` of a form with a file and the schema's fields. `others`: names of files that may be there."""
    (json_body,) = schema.openapi()["requestBody"]["content"].values()
    fields = json_body["schema"]
    for name in (file, *others):
        fields["properties"][name] = {"type": "string", "format": "binary"}
    fields["required"] = [*fields.get("required", ()), file]
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": fields}}}}
