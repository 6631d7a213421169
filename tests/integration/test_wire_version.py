"""Processes of neighbouring wire versions work together; others are refused, and told why."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from app.dispatch.fleet.fleet_reader import FleetReader
from app.errors import WireMismatch
from app.keys import Keys
from app.messages.wire import WIRE_VERSION
from app.pools.schema import Pool
from app.settings import Settings
from app.store import Wire
from app.store.wire_version import check, keep_noting, note
from tests.background import beside, until
from tests.integration.conftest import POOL, register
from tests.stack import mock_pool, stack

pytestmark = pytest.mark.both_servers

KEYS = Keys("test")
SETTINGS = Settings(deployment="test", keep_s=20.0)
DAY_S = 86_400  # which a request may take


async def strangers(redis: "Redis") -> Any:
    return await redis.execute_command(*note(SETTINGS))


async def seen(redis: "Redis", version: int, ago_s: float = 0.0) -> None:
    """A process of that version noted itself."""
    seconds, _ = await redis.time()
    await redis.hset(KEYS.wire_versions(), str(version), round((seconds - ago_s) * 1000))


@pytest.mark.parametrize("other", [WIRE_VERSION - 1, WIRE_VERSION, WIRE_VERSION + 1])
async def test_neighbours_are_noted_beside_each_other(redis: "Redis", other: int) -> None:
    await seen(redis, other, ago_s=DAY_S)
    assert await strangers(redis) == []
    assert {int(v) for v in await redis.hkeys(KEYS.wire_versions())} == {other, WIRE_VERSION}


async def test_a_version_that_is_too_far_away_is_named_and_nothing_is_noted(redis: "Redis") -> None:
    await seen(redis, WIRE_VERSION + 2)
    await seen(redis, WIRE_VERSION + 1)
    assert await strangers(redis) == [WIRE_VERSION + 2]
    assert str(WIRE_VERSION).encode() not in await redis.hkeys(KEYS.wire_versions())
    with pytest.raises(WireMismatch, match=f"wire version {WIRE_VERSION + 2} use this deployment"):
        check([WIRE_VERSION + 2])


async def test_a_version_counts_for_as_long_as_what_it_wrote_may_be_read(redis: "Redis") -> None:
    await seen(redis, WIRE_VERSION + 2, ago_s=DAY_S + 18)
    assert await strangers(redis) == [WIRE_VERSION + 2]
    await seen(redis, WIRE_VERSION + 2, ago_s=DAY_S + 22)
    assert await strangers(redis) == []
    assert await redis.hkeys(KEYS.wire_versions()) == [str(WIRE_VERSION).encode()]


async def test_a_process_that_meets_such_a_version_later_ends(
    redis: "Redis", wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process was suspended over two upgrades, say."""
    signals: list[int] = []
    monkeypatch.setattr("app.store.wire_version.os.kill", lambda _pid, sig: signals.append(sig))
    monkeypatch.setattr("app.store.wire_version._EVERY_S", 0.02)
    async with beside(keep_noting(wire, SETTINGS)):
        await asyncio.sleep(0.1)
        assert not signals
        await seen(redis, WIRE_VERSION + 2)
        await until(lambda: signals, 5)
    assert signals[0] == signal.SIGTERM


async def test_nothing_is_placed_on_a_worker_that_is_too_far_away(redis: "Redis", wire: Wire) -> None:
    near, far = WIRE_VERSION + 1, WIRE_VERSION + 2
    await register(redis, KEYS, "near", wire=near)
    await register(redis, KEYS, "far", wire=far)
    fleet = FleetReader(wire, KEYS, {POOL: Pool(model="m", engine="mock")}, 100)
    assert [lease.worker.id for lease in await fleet.live([POOL])] == ["near"]


@pytest.mark.parametrize("what", ["api", "worker", "batch worker"])
def test_a_process_does_not_start_and_says_which_version_it_has_met(valkey_url: str, tmp_path: Path, what: str) -> None:
    async def meet() -> None:
        async with Redis.from_url(valkey_url) as redis:
            await redis.flushall()
            await seen(redis, WIRE_VERSION + 7)

    asyncio.run(meet())
    with stack(valkey_url, tmp_path, {POOL: mock_pool()}, XYLEM_DEPLOYMENT="test") as s:
        process = s.api("p") if what == "api" else s.worker(POOL if what == "worker" else "batch", "p")
        assert process.wait(60) != 0
        assert f"wire version {WIRE_VERSION + 7} use this deployment" in s.log("p")
