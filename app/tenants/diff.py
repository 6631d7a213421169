"""Compares tenants, keys and prices as they are with those of a file: what is added, changed and removed. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct, structs

from app.errors import RequestError, SettingsError
from app.ids import KeyId, TenantId
from app.tenants.api_keys import check_name, check_tenant_name, with_limits
from app.tenants.records import ApiKey, Tenant
from app.tenants.registry import (
    Change,
    Registry,
    drop_key,
    drop_price,
    drop_tenant,
    put_key,
    put_price,
    put_tenant,
)
from app.tenants.wanted import TenantInFile, TenantsFile, WantedKey, shown, shown_tenant

Kind = Literal["added", "changed", "removed"]


class Difference(Struct, frozen=True):
    kind: Kind
    target: str  # "tenant a", "key b", "price of c"
    details: Mapping[str, tuple[Any, Any]]  # field → before, afterwards; None: not given
    changes: Sequence[Change]


class Plan(Struct, frozen=True):
    differences: list[Difference]
    kept: list[str]  # what is not in the file, and why it stays

    @property
    def changes(self) -> list[Change]:
        return [change for difference in self.differences for change in difference.changes]


def planned(now: Registry, file: TenantsFile, *, prune: bool, at: float, new_id: Iterator[KeyId]) -> Plan:
    """`prune`: keys that the file doesn't name are removed. `at`: the time. Raises: SettingsError."""
    differences: list[Difference] = []
    notes: list[str] = []
    if file.tenants is not None:
        tenants = file.tenants
        for name, tenant in tenants.items():
            differences += _tenant(now.tenants.get(TenantId(name)), name, tenant, at)
        keys = {key.name: key for key in _keys(now, tenants, at, new_id)}
        for key in keys.values():
            differences += _key(now.keys.get(key.name), key)
        others = [key for name, key in now.keys.items() if name not in keys]
        if prune:
            differences += [_gone("key", key.name, _shown_key(key), *drop_key(key)) for key in others]
        else:
            notes += [f"key {key.name} of {key.tenant}: not in the file; --prune removes it" for key in others]
        _check_digests([*keys.values(), *([] if prune else others)])
        with_keys = set() if prune else {key.tenant for key in others}
        for name, old in now.tenants.items():
            if name in tenants:
                continue
            if name in with_keys:
                notes.append(f"tenant {name}: not in the file, and has keys that are not in it either")
            else:
                differences.append(_gone("tenant", name, shown_tenant(old), drop_tenant(name)))
    if file.prices is not None:
        for model, price in file.prices.items():
            before, after = now.prices.get(model), price.record()
            if before != after:
                differences.append(_made("price of", model, _asdict(before), _asdict(after), put_price(model, after)))
        differences += [
            _gone("price of", model, _asdict(price), drop_price(model))
            for model, price in now.prices.items()
            if model not in file.prices
        ]
    return Plan(differences, notes)


def _tenant(old: Tenant | None, name: str, target: TenantInFile, at: float) -> list[Difference]:
    if old is None:
        _check(check_tenant_name, name, f"tenants.{name}")
    new = target.record(name, at, old)
    if new == old:
        return []
    before = None if old is None else shown_tenant(old)
    return [_made("tenant", name, before, shown_tenant(new), put_tenant(new))]


def _keys(now: Registry, tenants: Mapping[str, TenantInFile], at: float, new_id: Iterator[KeyId]) -> Iterator[ApiKey]:
    tenant_by_name: dict[str, str] = {}
    for tenant, in_file in tenants.items():
        for name, file_key in in_file.keys.items():
            if name in tenant_by_name:
                raise SettingsError(
                    f"tenants.{tenant}.keys.{name}: tenant {tenant_by_name[name]} has a key of that name, too"
                )
            tenant_by_name[name] = tenant
            yield _wanted_key(now.keys.get(name), tenant, name, file_key, at, new_id=new_id)


def _wanted_key(
    old: ApiKey | None, tenant: str, name: str, target: WantedKey, at: float, new_id: Iterator[KeyId]
) -> ApiKey:
    if target.sha256 is None and old is None:
        raise SettingsError(
            f"tenants.{tenant}.keys.{name}: there is no such key; one that is to be made needs 'sha256'"
        )
    if old is None:
        _check(check_name, name, f"tenants.{tenant}.keys.{name}")
    digest = bytes.fromhex(target.sha256) if target.sha256 is not None else old.digest if old is not None else b""
    if old is None or old.digest != digest:  # another key: it does not get what was made with the old one
        old = ApiKey(name, digest, at, id=next(new_id))
    return with_limits(structs.replace(old, tenant=TenantId(tenant)), target.limits())


def _check(check: Callable[[str], None], name: str, where: str) -> None:
    """A new one's name: those that exist keep theirs. Raises: SettingsError."""
    try:
        check(name)
    except RequestError as exc:
        raise SettingsError(f"{where}: {exc.message}") from None


def _key(old: ApiKey | None, new: ApiKey) -> list[Difference]:
    if old == new:
        return []
    return [_made("key", new.name, None if old is None else _shown_key(old), _shown_key(new), put_key(new))]


def _check_digests(keys: list[ApiKey]) -> None:
    name_by_digest: dict[bytes, str] = {}
    for key in keys:
        if key.digest in name_by_digest:
            raise SettingsError(f"the keys {name_by_digest[key.digest]} and {key.name} have the same 'sha256'")
        name_by_digest[key.digest] = key.name


def _shown_key(key: ApiKey) -> dict[str, Any]:
    return {"tenant": key.tenant, "sha256": f"{key.digest.hex()[:8]}…", **shown(key.limits)}


def _asdict(record: Struct | None) -> dict[str, Any] | None:
    return None if record is None else {name: value for name, value in structs.asdict(record).items() if value}


def _made(
    what: str, name: str, before: dict[str, Any] | None, after: dict[str, Any] | None, change: Change
) -> Difference:
    kind: Kind = "added" if before is None else "changed"
    old, new = before or {}, after or {}
    fields = [field for field in {**old, **new} if old.get(field) != new.get(field)]
    return Difference(kind, f"{what} {name}", {field: (old.get(field), new.get(field)) for field in fields}, [change])


def _gone(what: str, name: str, before: dict[str, Any] | None, *changes: Change) -> Difference:
    return Difference("removed", f"{what} {name}", {field: (v, None) for field, v in (before or {}).items()}, changes)
