"""What the handlers of one API process share."""

from dataclasses import dataclass
from typing import cast

from fastapi import Request

from app.api.api_keys import Keyring
from app.api.resumable.owner import Keeper
from app.api.resumable.store import Shelf
from app.batch.batch_store import Book
from app.batch.file_store import FileShelf
from app.batch.storage import Storage
from app.dispatch.runtime import Serving


@dataclass(frozen=True)
class ApiState(Serving):
    keyring: Keyring
    shelf: Shelf
    keeper: Keeper
    storage: Storage
    files: FileShelf
    book: Book
    started: int  # seconds since the epoch


def state_of(request: Request) -> ApiState:
    return cast(ApiState, request.app.state.xylem)
