"""Erasures in Redis, and what they change there of keys and tenants. All methods raise StoreDown."""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from app.ids import ApiId, KeyId, TenantId
from app.keys import Keys
from app.kv_store.salts import label_of, new_salt
from app.messages.wire import encode
from app.store import Command, Wire, clock
from app.store.scripts import LEAD
from app.telemetry import logger
from app.tenants.erasures import Erasure, Kind, decode_erasure, field_of
from app.tenants.records import DEFAULT, ApiKey, Tenant, decode_api_key, decode_tenant
from app.tenants.registry import changed_command

log = logger(__name__)

_LEADS_MS = 30_000
_ERASED_S = 30 * 86_400.0  # in which engines forget the KV of a salt, or restart


class Found(NamedTuple):
    """Owners and tenants whose things are to be erased."""

    owners: list[KeyId]
    tenants: list[TenantId]  # whose salts are
    valid: int = 0  # of the owners, those whose key is not revoked


class ErasureStore:
    def __init__(self, wire: Wire, keys: Keys) -> None:
        self._wire, self._keys = wire, keys

    async def all(self) -> list[Erasure]:
        (flat,) = await self._wire.execute([("HGETALL", self._keys.erasures()[0])])
        return [erasure for erasure in map(_understood, flat[1::2]) if erasure is not None]

    async def find(self, kind: Kind, name: str) -> Erasure | None:
        (raw,) = await self._wire.execute([("HGET", self._keys.erasures()[0], field_of(kind, name))])
        return None if raw is None else decode_erasure(raw)

    async def put(self, erasure: Erasure) -> None:
        await self._wire.execute([("HSET", self._keys.erasures()[0], erasure.field, encode(erasure))])

    async def update(self, erasure: Erasure) -> None:
        """Writes an erasure, if it was not begun anew meanwhile."""
        now = await self.find(erasure.kind, erasure.name)
        if now is not None and now.began == erasure.began:
            await self.put(erasure)

    async def forget(self, erasure: Erasure) -> None:
        await self._wire.execute([("HDEL", self._keys.erasures()[0], erasure.field)])

    async def leads(self, api: ApiId) -> bool:
        """Whether this replica carries erasures out. Two that do so for a while do no harm."""
        (leads,) = await self._wire.execute([("EVAL", LEAD, 1, self._keys.erasures()[1], api, _LEADS_MS)])
        return bool(leads)

    async def of_key(self, name: str) -> Found | None:
        """Finds a key by its name, or by its id, also if it is revoked. None: there is no such key."""
        for key in await self._api_keys():
            if name in (key.name, key.owner):
                return Found([key.owner], [key.tenant], 1)
        (tenant,) = await self._wire.execute([("HGET", self._keys.key_owners(), name)])
        return None if tenant is None else Found([KeyId(name)], [TenantId(tenant.decode())])

    async def of_tenant(self, name: TenantId) -> Found | None:
        """Finds a tenant, with its revoked keys. None: there is no such tenant."""
        (flat,) = await self._wire.execute([("HGETALL", self._keys.key_owners())])
        valid = {key.owner for key in await self._api_keys() if key.tenant == name}
        pairs = zip(flat[::2], flat[1::2], strict=True)
        owners = valid | {KeyId(id_.decode()) for id_, tenant in pairs if tenant.decode() == name}
        if not owners and name != DEFAULT and await self.tenant(name) is None:
            return None
        return Found(sorted(owners | {KeyId("")} if name == DEFAULT else owners), [name], len(valid))

    async def labels(self, tenants: Iterable[TenantId]) -> list[str]:
        """Labels of the tenants' present salts."""
        records = [await self.tenant(name) for name in tenants]
        return [label_of(tenant.salt) for tenant in records if tenant is not None and tenant.salt]

    async def tenant(self, name: TenantId) -> Tenant | None:
        (raw,) = await self._wire.execute([("HGET", self._keys.tenants(), name)])
        return None if raw is None else decode_tenant(raw)

    async def revoke(self, owners: Iterable[KeyId]) -> int:
        """Revokes the owners' keys. Returns how many were still valid."""
        owner_set = set(owners)
        valid = [key for key in await self._api_keys() if key.owner in owner_set]
        commands: list[Command] = []
        for key in valid:
            commands.append(("HSET", self._keys.key_owners(), key.owner, key.tenant))
            commands.append(("HDEL", self._keys.api_keys(), key.name))
        commands.append(changed_command(self._keys))
        await self._wire.execute(commands)
        return len(valid)

    async def change_salts(self, erasure: Erasure) -> None:
        """Nobody uses the erasure's salts any more, and workers remove their blocks. An erased tenant is no more."""
        now = clock.now()
        salts_key = self._keys.erased_salts()
        (flat,) = await self._wire.execute([("HGETALL", salts_key)])
        old = [field for field, at in zip(flat[::2], flat[1::2], strict=True) if _is_old(field, at, now)]
        counts = [field for field in flat[::2] if b"|" in field and field.partition(b"|")[0] in old]
        commands: list[Command] = [("HDEL", salts_key, *old, *counts)] if old else []
        commands += [("HSETNX", salts_key, label, now) for label in erasure.labels]
        (tenants,) = await self._wire.execute([("HGETALL", self._keys.tenants())])
        for tenant in map(decode_tenant, tenants[1::2]):
            if erasure.kind == "tenant" and tenant.name == erasure.name:
                commands.append(("HDEL", self._keys.tenants(), tenant.name))
            elif tenant.salt and label_of(tenant.salt) in erasure.labels:
                commands.append(("HSET", self._keys.tenants(), tenant.name, encode(replace(tenant, salt=new_salt()))))
        commands.append(changed_command(self._keys))
        await self._wire.execute(commands)

    async def isolate(self, name: TenantId, *, isolated: bool) -> None:
        """Its KV is its own from now on, or is shared. What was kept of it in stores under its salt is removed."""
        tenant = await self.tenant(name) or Tenant(name, clock.now())
        if bool(tenant.salt) == isolated:
            return
        commands: list[Command] = []
        if tenant.salt:
            commands.append(("HSETNX", self._keys.erased_salts(), label_of(tenant.salt), clock.now()))
        new_tenant = replace(tenant, salt=new_salt() if isolated else "")
        await self._wire.execute([*commands, ("HSET", self._keys.tenants(), name, encode(new_tenant))])

    async def removed_kv(self) -> dict[str, int]:
        """Number of blocks that a pool's workers have removed from its store, by "<label>|<pool>"."""
        (flat,) = await self._wire.execute([("HGETALL", self._keys.erased_salts())])
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return {field.decode(): int(count) for field, count in pairs if b"|" in field}

    async def forget_owners(self, owners: Iterable[KeyId]) -> None:
        """Nothing of theirs is left, and nothing will come."""
        if owners := list(owners):
            await self._wire.execute([("HDEL", self._keys.key_owners(), *owners)])

    async def _api_keys(self) -> list[ApiKey]:
        (flat,) = await self._wire.execute([("HVALS", self._keys.api_keys())])
        return [decode_api_key(raw) for raw in flat]


def _understood(raw: bytes) -> Erasure | None:
    try:
        return decode_erasure(raw)
    except msgspec.MsgspecError as exc:  # of another version; the others go on
        log.error("erasure_not_understood", error=str(exc))
        return None


def _is_old(field: bytes, at: bytes, now: float) -> bool:
    return b"|" not in field and now - float(at) > _ERASED_S
