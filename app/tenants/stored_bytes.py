"""Bytes that a client may have stored: its key's, within what its tenant's other keys leave of the tenant's.

A tenant's bytes are read and not locked: requests that come together may exceed its quota by what they bring.
"""

from collections.abc import Callable
from sys import maxsize
from typing import NamedTuple

from app.ids import KeyId
from app.keys import Keys
from app.settings import Settings
from app.store import Command, Wire
from app.tenants.directory import Directory
from app.tenants.records import Client


class Quota(NamedTuple):
    most: int  # bytes that the client's key may have
    others: int = 0  # bytes that the tenant's other keys have, where the tenant's quota is what limits
    of_tenant: bool = False
    in_all: int = maxsize  # bytes that all clients together may have


class Quotas:
    """All methods raise StoreDown."""

    def __init__(self, wire: Wire, keys: Keys, directory: Directory, settings: Settings) -> None:
        self._wire, self._keys, self._directory = wire, keys, directory
        self._settings = settings

    async def files(self, client: Client) -> Quota:
        own = self._settings.file_quota if client.within.file_quota is None else client.within.file_quota
        of_tenant = client.tenant.limits.file_quota
        quota = await self._within(client, own, of_tenant, lambda key: ("GET", self._keys.file_bytes(key)))
        return quota._replace(in_all=self._settings.file_bytes_in_all)

    async def kept(self, client: Client) -> Quota:
        """The quota of kept answers and conversations."""
        own = self._settings.keep_bytes_per_key if client.within.keep_bytes is None else client.within.keep_bytes
        account, _ = self._keys.kept_account()
        return await self._within(
            client, own, client.tenant.limits.keep_bytes, lambda key: ("HGET", account, f"key:{key}")
        )

    async def _within(
        self, client: Client, own: int, of_tenant: int | None, bytes_of: Callable[[KeyId], Command]
    ) -> Quota:
        """`bytes_of`: what reads how many bytes a key has."""
        if of_tenant is None:
            return Quota(own)
        had = await self._wire.execute([bytes_of(key) for key in await self._other_owners(client)])
        others = sum(int(value or 0) for value in had)
        remaining_bytes = max(0, of_tenant - others)
        return Quota(remaining_bytes, others, of_tenant=True) if remaining_bytes < own else Quota(own)

    async def _other_owners(self, client: Client) -> list[KeyId]:
        """The tenant's other owners, also revoked keys, and those who come with tokens."""
        (flat,) = await self._wire.execute([("HGETALL", self._keys.key_owners())])
        tenant = client.tenant.name
        owners = {KeyId(key.decode()) for key, of in zip(flat[::2], flat[1::2], strict=True) if of.decode() == tenant}
        owners |= {key.owner for key in self._directory.registry.keys.values() if key.tenant == tenant}
        return sorted(owners - {client.key})
