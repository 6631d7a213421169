"""Redis clients, and the scripts that run inside Redis."""

from app.store.clients import async_client, sync_client, tls_options
from app.store.refusal import store_down
from app.store.scripts import ADOPT, CANCEL, CHARGE, KEEP, NOTE, PLACE, RECONCILE, RELEASE, SNAPSHOT
from app.store.wire import Command, Connection, Wire

__all__ = [
    "ADOPT",
    "CANCEL",
    "CHARGE",
    "KEEP",
    "NOTE",
    "PLACE",
    "RECONCILE",
    "RELEASE",
    "SNAPSHOT",
    "Command",
    "Connection",
    "Wire",
    "async_client",
    "store_down",
    "sync_client",
    "tls_options",
]
