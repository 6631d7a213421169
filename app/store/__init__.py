"""Redis clients, and the scripts that run inside Redis."""

from app.store.clients import async_client, sync_client, tls_options
from app.store.refusal import store_down
from app.store.scripts import (
    ADOPT,
    CANCEL,
    CHARGE,
    CLAIM,
    CLOSE,
    FEED,
    GRASP,
    KEEP,
    LEAD,
    NOTE,
    PLACE,
    RECONCILE,
    RELEASE,
    RESULT,
    SNAPSHOT,
    TURN,
)
from app.store.wire import Command, Connection, Wire

__all__ = [
    "ADOPT",
    "CANCEL",
    "CHARGE",
    "CLAIM",
    "CLOSE",
    "FEED",
    "GRASP",
    "KEEP",
    "LEAD",
    "NOTE",
    "PLACE",
    "RECONCILE",
    "RELEASE",
    "RESULT",
    "SNAPSHOT",
    "TURN",
    "Command",
    "Connection",
    "Wire",
    "async_client",
    "store_down",
    "sync_client",
    "tls_options",
]
