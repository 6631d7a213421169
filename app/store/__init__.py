"""Redis clients, and the scripts that run inside Redis."""

from app.store.clients import async_client, translate
from app.store.scripts import PLACE, RELEASE, SNAPSHOT

__all__ = ["PLACE", "RELEASE", "SNAPSHOT", "async_client", "translate"]
