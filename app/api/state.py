"""What the handlers of one API process share."""

from dataclasses import dataclass
from typing import cast

from fastapi import Request

from app.api.kept.keeper import Keeper
from app.api.kept.shelf import Shelf
from app.api.keyring import Keyring
from app.api.serving import Serving
from app.batch.book import Book
from app.batch.shelf import FileShelf
from app.batch.storage import Storage


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
