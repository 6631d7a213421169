"""Tenants as people write them, and what a file changes."""

import hashlib
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from app.api.operations.tenant_schemas import Limited
from app.cli.limit_options import flag, read
from app.errors import SettingsError
from app.ids import KeyId, TenantId
from app.messages.wire import encode
from app.tenants.api_keys import with_limits
from app.tenants.diff import Plan, planned
from app.tenants.limit_table import ROWS, Budget, TenantLimits
from app.tenants.records import ApiKey, Price, Tenant, decode_api_key, decode_price, decode_tenant
from app.tenants.registry import Registry
from app.tenants.tenants_file import parsed
from app.tenants.wanted import (
    TenantsFile,
    WantedKey,
    WantedLimits,
    WantedPrice,
    WantedTenant,
    read_budget,
    show_budget,
    shown,
    shown_tenant,
)

COUNTS = st.none() | st.integers(1, 2**31 - 1)
BUDGETS = st.builds(
    Budget, st.integers(1, 10**12) | st.integers(1, 10**9).map(lambda n: n / 100), st.sampled_from(["tokens", "money"]),
    st.sampled_from(["day", "week", "month"]),
)  # fmt: skip
LIMITS = st.builds(
    TenantLimits, models=st.none() | st.lists(st.text("abc/-.", min_size=1), max_size=3), requests_per_min=COUNTS,
    tokens_per_min=COUNTS, parallel=COUNTS, budget=st.none() | BUDGETS, min_priority=st.none() | st.integers(-100, -50),
    default_priority=st.none() | st.integers(-50, 100), default_max_tokens=st.none() | st.integers(1, 99),
    max_tokens=st.none() | st.integers(100, 9999), batch_requests_per_min=COUNTS, batch_tokens_per_min=COUNTS,
    batch_lines=COUNTS, file_quota=st.none() | st.integers(0, 2**50), keep_bytes=st.none() | st.integers(0, 2**50),
    expires=st.none() | st.integers(0, 2**33).map(float),
)  # fmt: skip
FEW = st.builds(
    TenantLimits, models=st.none() | st.just(["m"]), tokens_per_min=COUNTS, parallel=COUNTS, budget=st.none() | BUDGETS
)  # fmt: skip
TENANTS = st.builds(Tenant, st.just("t"), st.just(1.0), st.floats(0.01, 100), FEW, st.booleans())
NAMES = st.sampled_from(["a", "b", "c", "default"])
PRICES = st.builds(Price, st.floats(0, 99), st.none() | st.floats(0, 99), st.floats(0, 99), st.floats(0, 99))


def key(name: str, tenant: str, limits: TenantLimits) -> ApiKey:
    api_key = ApiKey(name, hashlib.sha256(name.encode()).digest(), 1.0, id=KeyId(f"key_{name}"), tenant=tenant)  # type: ignore[arg-type]
    return with_limits(api_key, limits)


@st.composite
def registries(draw: st.DrawFn) -> Registry:
    tenants = draw(st.dictionaries(NAMES, TENANTS, max_size=4))
    keys = draw(
        st.dictionaries(st.sampled_from("xyzw"), st.tuples(st.sampled_from(sorted(tenants) or ["default"]), LIMITS))
    )
    return Registry(
        {name: structs.replace(tenant, name=name) for name, tenant in tenants.items()},  # type: ignore[misc]
        {name: key(name, tenant, limits) for name, (tenant, limits) in keys.items()},
        draw(st.dictionaries(st.sampled_from(["m", "n"]), PRICES)),
    )


def as_file(registry: Registry) -> TenantsFile:
    """The file that would make the registry, as people write it."""
    tenants: dict[str, Any] = {name: shown_tenant(tenant) | {"keys": {}} for name, tenant in registry.tenants.items()}
    for one in registry.keys.values():
        tenants.setdefault(one.tenant, {"keys": {}})["keys"][one.name] = {
            "sha256": one.digest.hex(), **shown(one.limits)
        }  # fmt: skip
    prices = {model: structs.asdict(price) for model, price in registry.prices.items()}
    return TenantsFile.model_validate({"tenants": tenants, "prices": prices})


def plan(now: Registry, file: TenantsFile, *, prune: bool = False) -> Plan:
    return planned(now, file, prune=prune, at=9.0, new_id=(KeyId(f"key_new{n}") for n in count()))


def test_other_limits_leave_a_tenant_its_kv_and_its_age() -> None:
    """The salt is in no file: without it, what is cached would be shared again."""
    before = Tenant(TenantId("blue"), 7.0, 2.0, salt="s")
    assert WantedTenant(weight=3.0).record("blue", 9.0, before) == Tenant(TenantId("blue"), 7.0, 3.0, salt="s")


def applied(now: Registry, found: Plan) -> Registry:
    """The registry after `change.lua` applies the plan."""
    hashes: dict[int, dict[str, Any]] = {
        2: {str(n): encode(t) for n, t in now.tenants.items()},
        3: {n: encode(k) for n, k in now.keys.items()},
        4: {m: encode(p) for m, p in now.prices.items()},
        5: {},
    }
    for number, field, value in found.changes:
        if value:
            hashes[number][field] = value
        else:
            del hashes[number][field]
    return Registry(
        {n: decode_tenant(raw) for n, raw in hashes[2].items()},  # type: ignore[misc]
        {n: decode_api_key(raw) for n, raw in hashes[3].items()},
        {m: decode_price(raw) for m, raw in hashes[4].items()},
    )


@given(LIMITS)
def test_limits_that_are_shown_are_read_as_they_were(limits: TenantLimits) -> None:
    assert WantedLimits.model_validate(shown(limits)).limits() == limits


@given(LIMITS)
def test_the_command_line_reads_what_a_file_has(limits: TenantLimits) -> None:
    """All values as texts."""
    texts = {name: ",".join(v) if isinstance(v, list) else str(v) for name, v in shown(limits).items()}
    if limits.models == []:
        del texts["models"]
        limits = structs.replace(limits, models=None)
    assert WantedLimits.model_validate_strings(texts).limits() == limits


@given(BUDGETS)
def test_a_budget_that_is_shown_is_read_as_it_was(budget: Budget) -> None:
    assert read_budget(show_budget(budget)) == budget


@given(registries(), registries())
def test_after_a_file_is_applied_with_prune_all_is_as_in_the_file_and_nothing_changes_again(
    now: Registry, wanted: Registry
) -> None:
    file = as_file(wanted)
    after = applied(now, plan(now, file, prune=True))
    assert plan(after, file, prune=True).differences == []
    assert plan(after, file).differences == []
    assert {name: k.limits for name, k in after.keys.items()} == {name: k.limits for name, k in wanted.keys.items()}
    assert {name: k.tenant for name, k in after.keys.items()} == {name: k.tenant for name, k in wanted.keys.items()}
    assert after.prices == wanted.prices
    for name, tenant in wanted.tenants.items():
        assert (after.tenants[name].limits, after.tenants[name].weight) == (tenant.limits, tenant.weight)


@given(registries(), registries())
def test_without_prune_no_key_goes_and_none_loses_its_tenant(now: Registry, wanted: Registry) -> None:
    after = applied(now, plan(now, as_file(wanted)))
    assert now.keys.keys() <= after.keys.keys()
    for name in now.keys.keys() - wanted.keys.keys():
        assert after.keys[name] == now.keys[name]
        assert now.keys[name].tenant == "default" or now.keys[name].tenant in after.tenants


@given(registries(), registries())
def test_a_key_with_the_same_digest_stays_the_owner_of_what_it_made(now: Registry, wanted: Registry) -> None:
    after = applied(now, plan(now, as_file(wanted)))
    for name in now.keys.keys() & after.keys.keys():
        assert (after.keys[name].id == now.keys[name].id) == (after.keys[name].digest == now.keys[name].digest)


def test_another_digest_under_a_name_is_another_key() -> None:
    """The new key does not get the files of the former."""
    now = Registry(keys={"x": key("x", "default", TenantLimits())})
    file = parsed(f"tenants: {{default: {{keys: {{x: {{sha256: {'a' * 64}}}}}}}}}", "f")
    (difference,) = plan(now, file).differences[-1:]
    assert (difference.kind, difference.target) == ("changed", "key x")
    assert applied(now, plan(now, file)).keys["x"].id == "key_new0"


@pytest.mark.parametrize(("text", "named"), [
    ("", "mapping"), ("[1]", "mapping"), ("a: &", "not YAML"),
    ("tenants: {a: {}, a: {}}", "twice"),
    ("tenant: {}", "tenant"),
    ("tenants: {'a b': {}}", "a b"),
    ("tenants: {a: {weight: -1}}", "tenants.a.weight=-1"),
    ("tenants: {a: {max_tokens: 'x'}}", "tenants.a.max_tokens='x'"),
    ("tenants: {a: {max_tokens: 5, default_max_tokens: 6}}", "max_tokens=5 is less than default_max_tokens=6"),
    ("tenants: {a: {expires: soon}}", "tenants.a.expires"),
    ("tenants: {a: {expires: 2027-02-30}}", "tenants.a.expires"),
    ("prices: {m: {input: 1:30}}", "prices.m.input='1:30'"),
    ("tenants: {a: {budget: 0tokens/day}}", "tenants.a.budget"),
    ("tenants: {a: {keys: {x: {sha256: ABC}}}}", "tenants.a.keys.x.sha256='ABC'"),
    ("prices: {m: {input: .nan}}", "prices.m.input"),
])  # fmt: skip
def test_a_file_that_is_wrong_is_refused_by_key_and_value(text: str, named: str) -> None:
    with pytest.raises(SettingsError) as error:
        parsed(text, "teams.yaml")
    assert error.value.message.startswith("teams.yaml: ")
    assert named in error.value.message


@pytest.mark.parametrize(("text", "named"), [
    ("tenants: {a: {keys: {x: {}}}}", "tenants.a.keys.x: there is no such key"),
    ("tenants: {a: {keys: {x: {sha256: D}}}, b: {keys: {x: {}}}}", "tenants.b.keys.x: tenant a"),
    ("tenants: {a: {keys: {x: {sha256: D}, y: {sha256: D}}}}", "x and y have the same"),
    ("tenants: {a: {keys: {x/: {sha256: D}}}}", "tenants.a.keys.x/: a key's name has no slash"),
    ("tenants: {a: {keys: {'..': {sha256: D}}}}", "tenants.a.keys...: a key's name has no slash"),
    ("tenants: {..: {}}", "tenants...: a tenant's name"),
])  # fmt: skip
def test_a_file_whose_keys_cannot_be_is_refused(text: str, named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        plan(Registry(), parsed(text.replace("D", "d" * 64), "f"))


def test_a_key_of_before_keeps_its_name_with_a_slash() -> None:
    now = Registry(keys={"x/": key("x/", "default", TenantLimits())})
    (difference,) = plan(now, parsed("tenants: {default: {keys: {x/: {max_tokens: 5}}}}", "f")).differences[-1:]
    assert (difference.kind, difference.target) == ("changed", "key x/")


def test_each_limit_is_an_option_of_its_own_and_in_all_descriptions() -> None:
    assert (
        list(ROWS)
        == list(TenantLimits.__struct_fields__)
        == list(WantedLimits.model_fields)
        == list(Limited.model_fields)
    )
    assert {name: field.description for name, field in WantedLimits.model_fields.items()} == {
        name: row.help for name, row in ROWS.items()
    }
    assert len({flag(name) for name in ROWS}) == len(ROWS)
    assert flag("batch_requests_per_min") == "--batch-rpm"


def test_options_that_are_no_limits_are_read_beside_them() -> None:
    """A price, and the digest of a key; a date may be in days."""
    assert read(WantedPrice, {"input": "1.5"}).input == 1.5
    key = read(WantedKey, {"sha256": "d" * 64, "expires": "30d"})
    assert key.sha256 == "d" * 64
    assert key.limits().expires is not None
