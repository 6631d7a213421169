"""All tenants, API keys and prices, as they are read from Redis and changed there in one step."""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from app.ids import TenantId
from app.keys import Keys
from app.messages.wire import encode
from app.store import Command
from app.store.scripts import CHANGE_TENANTS
from app.telemetry import logger
from app.tenants.records import (
    DEFAULT,
    ApiKey,
    Price,
    Tenant,
    decode_api_key,
    decode_price,
    decode_tenant,
)

log = logger(__name__)
T = TypeVar("T")

Change = tuple[int, str, bytes]  # number of the hash in `change.lua`, field, value; b"" deletes the field
_TENANT, _KEY, _PRICE, _OWNER = 2, 3, 4, 5


class Registry(Struct, frozen=True):
    """Tenants, keys and prices, by their names."""

    tenants: Mapping[TenantId, Tenant] = {}
    keys: Mapping[str, ApiKey] = {}
    prices: Mapping[str, Price] = {}
    version: bytes = b""

    def has(self, tenant: TenantId) -> bool:
        """The default tenant needs no record."""
        return tenant == DEFAULT or tenant in self.tenants

    def keys_of(self, tenant: TenantId) -> list[ApiKey]:
        return [key for key in self.keys.values() if key.tenant == tenant]


def read_commands(keys: Keys) -> list[Command]:
    """Their replies go to `registry_of`. The version comes first: what is read after it is at least as new."""
    hashes = keys.tenants(), keys.api_keys(), keys.prices()
    return [("GET", keys.tenants_version()), *(("HGETALL", name) for name in hashes)]


def registry_of(replies: Sequence[Any]) -> Registry:
    version, tenants, api_keys, prices = replies
    return Registry(
        {TenantId(name): one for name, one in _decoded(decode_tenant, tenants).items()},
        _decoded(decode_api_key, api_keys),
        _decoded(decode_price, prices),
        version or b"",
    )


def _decoded(decode: Callable[[bytes], T], fields: Any) -> dict[str, T]:
    """`fields`: of a hash, as a mapping or flat, as clients of Redis return it."""
    pairs = fields.items() if isinstance(fields, Mapping) else zip(fields[::2], fields[1::2], strict=True)
    records = {}
    for name, record in pairs:
        try:
            records[name.decode()] = decode(record)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:  # a bad record locks out only its own client
            log.error("key_not_understood", error=str(exc))
    return records


def put_tenant(tenant: Tenant) -> Change:
    return _TENANT, tenant.name, encode(tenant)


def put_key(key: ApiKey) -> Change:
    return _KEY, key.name, encode(key)


def put_price(model: str, price: Price) -> Change:
    return _PRICE, model, encode(price)


def drop_tenant(name: str) -> Change:
    return _TENANT, name, b""


def drop_key(key: ApiKey) -> tuple[Change, Change]:
    """Changes that drop a key. Its tenant is kept: what was made with it can still be erased."""
    return (_OWNER, key.owner, key.tenant.encode()), (_KEY, key.name, b"")


def drop_price(model: str) -> Change:
    return _PRICE, model, b""


def change_command(keys: Keys, before: Registry, changes: Iterable[Change]) -> Command:
    """Its reply is 0, and nothing is changed, if somebody has changed something since `before` was read."""
    names = keys.tenants_version(), keys.tenants(), keys.api_keys(), keys.prices(), keys.key_owners()
    flat = [part for change in changes for part in change]
    return ("EVAL", CHANGE_TENANTS, len(names), *names, before.version, secrets.token_hex(8), *flat)


def changed_command(keys: Keys) -> Command:
    """The command for a change that is made otherwise: whoever read what was before it does not overwrite it."""
    return ("SET", keys.tenants_version(), secrets.token_hex(8))
