"""What the handlers of one API process share."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from fastapi import Request
from redis.asyncio import Redis

from app.api.dispatch import Dispatcher
from app.api.fleet import FleetReader
from app.api.inbox import Inbox
from app.api.kept.keeper import Keeper
from app.api.kept.shelf import Shelf
from app.api.keyring import Keyring
from app.api.models import Model
from app.batch.book import Book
from app.batch.shelf import FileShelf
from app.batch.storage import Storage
from app.ids import PoolId
from app.keys import Keys
from app.pools import Pool
from app.settings import Settings


@dataclass(frozen=True)
class ApiState:
    settings: Settings
    models: dict[str, Model]
    pools: Mapping[PoolId, Pool]
    keys: Keys
    redis: "Redis"
    fleet: FleetReader
    dispatcher: Dispatcher
    inbox: Inbox
    keyring: Keyring
    shelf: Shelf
    keeper: Keeper
    storage: Storage
    files: FileShelf
    book: Book
    started: int  # seconds since the epoch


def state_of(request: Request) -> ApiState:
    return cast(ApiState, request.app.state.xylem)
