"""Painted files in the media store: kept for a time, and shown to their API key only. Their ids can't be guessed."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from app.api.http.own_url import own_url
from app.api.state import ApiState, state_of
from app.batch.records import StoredFile
from app.batch.storage import in_thread
from app.errors import FileGone, XylemError
from app.ids import FileId, new_file_id
from app.messages.job import Painting
from app.messages.kept import KeptRequest
from app.store import clock
from app.telemetry import logger

log = logger(__name__)
PATH = "/v1/images"
_TYPES = {"png": "image/png", "jpeg": "image/jpeg", "webp": "image/webp", "mp4": "video/mp4"}


async def keep(state: ApiState, scope: Scope, file: bytearray, painting: Painting) -> str:
    """Stores a picture; its URL. Raises: FileQuotaUsed, StorageDown, StoreDown."""
    owner, now = state.api_keys.owner(scope), int(clock.now())
    expires = now + state.settings.media_keep_s
    name = f"picture.{painting.format}"
    record = StoredFile(new_file_id(), owner, name, purpose="image", size=len(file), created=now, expires=expires)
    await in_thread(state.painted.put, record.path, file)
    try:
        await state.files.add(record, await state.quotas.files(state.api_keys.client(scope)))
    except XylemError:
        await in_thread(state.painted.delete, record.path)
        raise
    return f"{own_url(state.settings, scope)}{PATH}/{record.id}"


async def keep_video(state: ApiState, kept_request: KeptRequest, file: bytearray) -> None:
    """Stores a video under the id of its job. Raises: FileQuotaUsed, StorageDown, StoreDown."""
    now = int(clock.now())
    record = StoredFile(
        FileId(kept_request.id),
        kept_request.key,
        "video.mp4",
        purpose="video",
        size=len(file),
        created=now,
        expires=now + state.settings.media_keep_s,
    )
    await in_thread(state.painted.put, record.path, file)
    await state.files.add(
        record, await state.quotas.files(state.api_keys.client_of(kept_request.tenant, kept_request.key))
    )


async def kept_file(request: Request, id_: str, purpose: str) -> Response:
    """A stored file of the client's. Its id is looked up in Redis, and never part of a path. Raises: FileGone."""
    state = state_of(request)
    record = await state.files.find(FileId(id_), state.api_keys.owner(request.scope))
    data = await in_thread(state.painted.get, record.path) if record.purpose == purpose else None
    if data is None:
        raise FileGone(f"There is no {purpose} '{id_[:100]}'; they are deleted after a time.")
    kind = _TYPES[record.name.rpartition(".")[2]]
    headers = {"cache-control": "private, no-store", "content-disposition": f'inline; filename="{record.name}"'}
    return Response(data, headers=headers, media_type=kind)
