"""The API keys, tenants and prices that Redis keeps, in a process's memory."""

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from app.errors import StoreDown
from app.ids import KeyId, TenantId
from app.keys import Keys
from app.store import Wire
from app.telemetry import logger
from app.tenants.records import (
    ApiKey,
    Client,
    Price,
    Tenant,
    decode_api_key,
    decode_price,
    decode_tenant,
)

log = logger(__name__)

T = TypeVar("T")

_EVERY_S = 1.0
PREFIX = 8  # bytes of a digest


class Directory:
    def __init__(self, wire: Wire, keys: Keys) -> None:
        self._wire, self._keys = wire, keys
        # By the first bytes of the digest. The time of a look-up can reveal only those; the rest is compared in
        # constant time.
        self._known: dict[bytes, tuple[ApiKey, Client]] = {}
        self._clients: dict[KeyId, Client] = {}
        self.tenants: dict[TenantId, Tenant] = {}
        self.prices: dict[str, Price] = {}  # by model
        self.loaded = asyncio.Event()

    async def run(self) -> None:
        """Keeps up with Redis until cancelled. While Redis is away, what was known stays known."""
        while True:
            try:
                await self.refresh()
            except StoreDown as exc:
                log.warning("keys_not_read", error=exc.message)
            except Exception:
                log.exception("keys_not_read")
            await asyncio.sleep(_EVERY_S)

    async def refresh(self) -> None:
        """Raises: StoreDown."""
        names = self._keys.api_keys(), self._keys.tenants(), self._keys.prices()
        keys, tenants, prices = await self._wire.execute([("HGETALL", name) for name in names])
        self.tenants = {tenant.name: tenant for _, tenant in _decoded(decode_tenant, tenants)}
        known = [(key, self._client(key)) for _, key in _decoded(decode_api_key, keys)]
        self._known = {key.digest[:PREFIX]: (key, client) for key, client in known}
        self._clients = {client.key: client for _, client in known}
        self.prices = dict(_decoded(decode_price, prices))
        self.loaded.set()

    def knows(self, key: KeyId) -> bool:
        """Whether there is such a key; it may have been revoked."""
        return key in self._clients

    def client_of(self, tenant: TenantId, key: KeyId) -> Client:
        """Whose a request is that came before: its limits are those of today, and a revoked key has none."""
        return self._clients.get(key) or Client(self.tenants.get(tenant) or Tenant(tenant), key)

    def _client(self, key: ApiKey) -> Client:
        tenant = self.tenants.get(key.tenant) or Tenant(key.tenant)
        return Client(tenant, key.owner, key.name, key.limits)


def _decoded(decode: Callable[[bytes], T], found: list[bytes]) -> Iterable[tuple[str, T]]:
    """Of the names and records of a hash."""
    for name, record in zip(found[::2], found[1::2], strict=True):
        try:
            yield name.decode(), decode(record)
        except msgspec.DecodeError as exc:  # a bad record locks out only its own client
            log.error("key_not_understood", error=str(exc))
