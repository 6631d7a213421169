"""The API keys, tenants and prices that Redis keeps, in a process's memory."""

import asyncio
from typing import Any

from app.ids import KeyId, TenantId
from app.keys import Keys
from app.running.loops import keep
from app.store import Wire
from app.tenants.limit_table import UNLIMITED, TenantLimits
from app.tenants.limits import together
from app.tenants.records import ApiKey, Client, Tenant
from app.tenants.registry import Registry, read_commands, registry_of

_EVERY_S = 1.0
PREFIX = 8  # bytes of a digest


class Directory:
    def __init__(self, wire: Wire, keys: Keys) -> None:
        self._wire, self._keys = wire, keys
        self.registry = Registry()
        # By the first bytes of the digest. The time of a look-up can reveal only those; the rest is compared in
        # constant time.
        self._known: dict[bytes, tuple[ApiKey, Client]] = {}
        self._clients: dict[KeyId, Client] = {}
        self._replies: list[Any] = []
        self.loaded = asyncio.Event()

    async def run(self) -> None:
        """Keeps up with Redis until cancelled. While Redis is away, what was known stays known."""
        await keep("keys_not_read", self.refresh, _EVERY_S)

    async def refresh(self) -> None:
        """Raises: StoreDown."""
        replies = await self._wire.execute(read_commands(self._keys))
        if replies != self._replies:
            self.registry, self._replies = registry_of(replies), replies
            pairs = [(key, self._client(key)) for key in self.registry.keys.values()]
            self._known = {key.digest[:PREFIX]: (key, client) for key, client in pairs}
            self._clients = {client.key: client for _, client in pairs}
        self.loaded.set()

    def knows(self, key: KeyId) -> bool:
        """Whether there is such a key; it may have been revoked."""
        return key in self._clients

    def client_of(self, tenant: TenantId, key: KeyId) -> Client:
        """The client of a request that came before: its limits are those of today, and a revoked key has none."""
        return self._clients.get(key) or self._made(tenant, key)

    def _client(self, key: ApiKey) -> Client:
        return self._made(key.tenant, key.owner, key.name, key.limits)

    def _made(self, tenant: TenantId, key: KeyId, name: str = "", own: TenantLimits = UNLIMITED) -> Client:
        record = self.registry.tenants.get(tenant) or Tenant(tenant)
        return Client(record, key, name, own, together(record.limits, own))
