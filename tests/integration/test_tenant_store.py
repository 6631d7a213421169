"""Tenants, keys and prices in Redis: changed in one step, and every change in the audit log."""

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis

from app.keys import Keys
from app.messages.wire import encode
from app.store import Wire
from app.tenants import audit
from app.tenants.limit_table import TenantLimits
from app.tenants.records import ApiKey, Price, Tenant
from app.tenants.registry import (
    Registry,
    change_command,
    drop_key,
    put_key,
    put_price,
    put_tenant,
    read_commands,
    registry_of,
)

KEYS = Keys("teams")
pytestmark = pytest.mark.both_servers


async def read(wire: Wire) -> Registry:
    return registry_of(await wire.execute(read_commands(KEYS)))


async def change(wire: Wire, before: Registry, *changes: Any) -> bool:
    (was_changed,) = await wire.execute([change_command(KEYS, before, changes)])
    return bool(was_changed)


async def test_tenants_keys_and_prices_change_together(redis: "Redis", wire: Wire) -> None:
    blue, key, price = (
        Tenant("blue", limits=TenantLimits(parallel=3)),
        ApiKey("a", b"1" * 32, 1.0),
        Price(1.0, output=2.5),
    )
    assert await change(wire, await read(wire), put_tenant(blue), put_key(key), put_price("m", price))
    now = await read(wire)
    assert (now.tenants, now.keys, now.prices) == ({"blue": blue}, {"a": key}, {"m": price})
    assert await change(wire, now, *drop_key(now.keys["a"]))
    assert (await read(wire)).keys == {}


async def test_of_those_who_have_read_the_same_one_changes_it(redis: "Redis", wire: Wire) -> None:
    """The others are told, and nothing of theirs is written."""
    before = await read(wire)
    others = [ApiKey(f"key-{n}", bytes([n]) * 32, 1.0) for n in range(20)]
    outcomes = await asyncio.gather(
        *(change(wire, before, put_key(key), put_tenant(Tenant(key.name))) for key in others)
    )
    assert sum(outcomes) == 1
    now = await read(wire)
    assert len(now.keys) == 1
    assert now.keys.keys() == now.tenants.keys() == {others[outcomes.index(True)].name}


async def test_a_change_that_is_sent_twice_is_made_once_and_succeeds(redis: "Redis", wire: Wire) -> None:
    """Nobody knows whether a command was executed before its connection broke."""
    before = await read(wire)
    command = change_command(KEYS, before, [put_tenant(Tenant("blue"))])
    assert await wire.execute([command, command]) == [1, 1]
    now = await read(wire)
    assert await change(wire, now, put_tenant(Tenant("red")))
    assert await wire.execute([command]) == [0]
    assert (await read(wire)).tenants.keys() == {"blue", "red"}


async def test_a_record_that_is_not_understood_hides_no_other_one(redis: "Redis", wire: Wire) -> None:
    await redis.hset(KEYS.tenants(), mapping={"bad": b"\xc1", "good": encode(Tenant("good"))})
    assert (await read(wire)).tenants.keys() == {"good"}


async def test_the_audit_log_is_bounded_and_read_in_pages(
    redis: "Redis", wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pages begin at the oldest entry, or at the newest."""
    monkeypatch.setattr(audit, "MOST_ENTRIES", 200)
    entries = [
        audit.entry("me", "did", str(n), {"n": n, "token": "secret", "deep": [{"Key": "x"}]}) for n in range(1000)
    ]
    await wire.execute([audit.note_command(KEYS, entry) for entry in entries])
    assert 200 <= await redis.xlen(KEYS.audit()) <= 400

    async def page(after: str, *, newest_first: bool = False) -> list[dict[str, Any]]:
        (replies,) = await wire.execute([audit.read_command(KEYS, after, 100, newest_first=newest_first)])
        return audit.shown(replies)

    newest = await page("", newest_first=True)
    assert [entry["target"] for entry in newest] == [str(n) for n in range(999, 899, -1)]
    older = await page(newest[-1]["id"], newest_first=True)
    assert older[0]["target"] == "899"
    assert (await page(older[0]["id"]))[0]["target"] == "900"
    for first in ("0", "0-0", "00-000"):
        assert await page(first, newest_first=True) == []
        assert len(await page(first)) == 100
    assert newest[0]["detail"] == {"n": 999, "token": "…", "deep": [{"Key": "…"}]}


def test_a_long_detail_is_left_out_but_for_its_fields() -> None:
    """An entry has few bytes."""
    entry = audit.entry("me", "did", "x", {"models": ["m" * 100] * 100, "rpm": 3})
    assert len(entry.detail) < 200
    assert "rpm" in entry.detail
