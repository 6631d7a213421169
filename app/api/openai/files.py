"""OpenAI's files: POST and GET /v1/files, GET and DELETE of one, and GET of its content."""

import asyncio
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from typing import IO, Annotated, Literal

import orjson
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response, StreamingResponse

from app.api.http.long_response import LongResponse
from app.api.intake.request_body import given_length
from app.api.openai.file_expiry import forget
from app.api.openai.multipart_upload import FORM, MULTIPART, Fields, received
from app.api.state import ApiState, state_of
from app.batch.records import StoredFile
from app.batch.storage import Storage, begun, in_thread
from app.errors import RequestError, XylemError
from app.ids import FileId, KeyId, new_file_id
from app.openai.file_answers import FileDeleted, FileList, FileObject
from app.schemas.answers import ends
from app.schemas.body import Query
from app.schemas.validation import parse
from app.store import clock
from app.telemetry import logger
from app.tenants.admission import admitted
from app.tenants.records import Client

log = logger(__name__)
router = APIRouter(tags=["files"])
PATH = "/v1/files"
_PIECE = 2**20  # bytes
_FEW = 256  # files; a list of more is written in a thread
_LONGEST_NAME = 255  # characters, as in most file systems


class FilesQuery(Query):
    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=10_000)] = 10_000
    order: Literal["asc", "desc"] = "desc"
    purpose: str | None = None


@router.post(PATH, openapi_extra=MULTIPART)
async def upload_file(request: Request) -> FileObject:
    """A file of requests for a batch, of up to XYLEM_MAX_FILE bytes; all of one API key have up to its quota."""
    state = state_of(request)
    await admitted()
    client = state.api_keys.client(request.scope)
    quota, length = await state.quotas.files(client), given_length(request.scope) or 0
    await state.files.check_room(client.key, max(0, length - FORM), quota)  # before a byte is read
    async with received(request, state.settings.max_file) as (form, fields):
        file = _new(state, client.key, form.filename or "", form.size or 0, fields)
        await add_file(state, client, file, partial(_store, state.storage, file.path, form.file))
    return _object(file)


async def add_file(state: ApiState, client: Client, file: StoredFile, store: Callable[[], None]) -> None:
    """`store` stores its bytes. Raises: FileQuotaUsed, StorageDown, StoreDown."""
    quota = await state.quotas.files(client)
    await state.files.check_room(client.key, file.counted, quota)  # before its bytes are stored
    await in_thread(store)
    try:
        await state.files.add(file, quota)
    except XylemError:
        await _drop(state.storage, file.path)
        raise


def _new(state: ApiState, key: KeyId, name: str, size: int, fields: Fields) -> StoredFile:
    """Raises: RequestError."""
    if len(name) > _LONGEST_NAME:
        raise RequestError(f"A file's name has at most {_LONGEST_NAME} characters.", param="file")
    now = int(clock.now())
    keep_s = fields.expires_after.seconds if fields.expires_after else state.settings.file_keep_s
    return StoredFile(new_file_id(), key, name, purpose=fields.purpose, size=size, created=now, expires=now + keep_s)


def _store(storage: Storage, path: str, source: IO[bytes]) -> None:
    with storage.write(path) as target:
        shutil.copyfileobj(source, target, _PIECE)


async def _drop(storage: Storage, path: str) -> None:
    """Deletes bytes that no record refers to."""
    try:
        await in_thread(storage.delete, path)
    except XylemError as exc:
        log.warning("file_left_behind", path=path, error=exc.message)


@router.get(PATH, openapi_extra=FilesQuery.openapi(), response_model=FileList)
async def list_files(request: Request) -> Response:
    """The client's files, newest or oldest first."""
    state = state_of(request)
    query = parse(FilesQuery, orjson.dumps(dict(request.query_params)))
    async with state.reading():
        files, more = await state.files.owned(
            state.api_keys.owner(request.scope),
            query.after or "",
            query.limit,
            newest_first=query.order == "desc",
            purpose=query.purpose,
        )

        def written() -> bytes:
            data = [_object(file) for file in files]
            first, last = ends(data)
            answer: FileList = {
                "object": "list",
                "data": data,
                "first_id": first,
                "last_id": last,
                "has_more": more,
            }
            return orjson.dumps(answer)

        return LongResponse(await asyncio.to_thread(written) if len(files) > _FEW else written(), state.answers)


@router.get(f"{PATH}/{{file}}")
async def show_file(request: Request, file: str) -> FileObject:
    return _object(await _find(request, file))


@router.get(f"{PATH}/{{file}}/content", response_class=StreamingResponse)
async def show_file_content(request: Request, file: str) -> StreamingResponse:
    """Its bytes."""
    record = await _find(request, file)
    pieces = await begun(_pieces(_storage_of(state_of(request), record), record.path))
    headers = {"content-length": str(record.size)}
    return StreamingResponse(pieces, headers=headers, media_type="application/octet-stream")


def _pieces(storage: Storage, path: str) -> Iterator[bytes]:
    with storage.read(path) as file:
        while piece := file.read(_PIECE):
            yield piece


@router.delete(f"{PATH}/{{file}}")
async def delete_file(request: Request, file: str) -> FileDeleted:
    """Deletes a file. A batch that has read it already continues."""
    state, record = state_of(request), await _find(request, file)
    await forget(_storage_of(state, record), state.files, record)
    return {"id": record.id, "object": "file", "deleted": True}


def _storage_of(state: ApiState, file: StoredFile) -> Storage:
    return state.painted if file.is_painted else state.storage


async def _find(request: Request, file: str) -> StoredFile:
    """A file of the client's. Its id is looked up in Redis, and never part of a path. Raises: FileGone."""
    state = state_of(request)
    return await state.files.find(FileId(file), state.api_keys.owner(request.scope))


def _object(file: StoredFile) -> FileObject:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.size,
        "created_at": file.created,
        "expires_at": file.expires,
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }
