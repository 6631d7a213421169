"""Redis clients. The scripts that run inside Redis are in `scripts.py`."""

from app.store.clients import async_client, sync_client
from app.store.connection import Command, Connection
from app.store.refusal import StoreFull, store_down
from app.store.wire import AnyConnection, Wire

__all__ = ["AnyConnection", "Command", "Connection", "StoreFull", "Wire", "async_client", "store_down", "sync_client"]
