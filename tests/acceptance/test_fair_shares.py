"""Several teams on one full fleet, of two API replicas and two workers: `make bench NAME=tenants` measures the same."""

import asyncio
import random
import time
from pathlib import Path
from statistics import median

import pytest

from ops.bench.tenants.fleet import fleet
from ops.bench.tenants.shares import Answered, Flood, error, flood, quiet, spent

_WEIGHTS = {"one": 1.0, "three": 3.0}
_SETTLES_S, _STEP_MS = 8.0, 25.0


@pytest.mark.alone
@pytest.mark.timeout(300)
def test_two_floods_share_the_engines_by_weight_and_a_third_tenant_hardly_waits(tmp_path: Path) -> None:
    """For a minute. The third one's first tokens come in a small part of the time that the floods wait."""
    with fleet(tmp_path, {**_WEIGHTS, "quiet": 1.0}, step_ms=_STEP_MS) as urls:
        answered, ttfts = asyncio.run(_minute(urls))
    assert error(spent(answered, _WEIGHTS), _WEIGHTS) <= 0.05
    assert len(ttfts) >= 200
    floods_took = median(a.at - a.began for a in answered)
    assert sorted(ttfts)[int(0.9 * len(ttfts))] < floods_took / 3


async def _minute(urls: list[str]) -> tuple[list[Answered], list[float]]:
    over = False
    floods = [Flood("one", 40, (20, 60), (20, 60)), Flood("three", 80, (20, 60), (20, 60))]
    flooding = asyncio.create_task(flood(urls, floods, lambda: over, _STEP_MS))
    await asyncio.sleep(_SETTLES_S)
    began = time.monotonic()
    ttfts = await quiet(urls, 240, random.Random(1))
    ended, over = time.monotonic(), True
    return [a for a in await flooding if began <= a.at < ended], ttfts


@pytest.mark.alone
@pytest.mark.timeout(300)
def test_a_flood_of_long_prompts_takes_no_more_than_its_share(tmp_path: Path) -> None:
    """Prompts of 8,000 tokens and a few tokens of answers, beside short prompts and longer answers."""
    with fleet(tmp_path, {"long": 1.0, "short": 1.0}, step_ms=_STEP_MS) as urls:
        began = time.monotonic() + _SETTLES_S
        floods = [Flood("long", 40, (2660, 2660), (1, 8)), Flood("short", 80, (20, 60), (20, 60))]
        answered = asyncio.run(flood(urls, floods, lambda: time.monotonic() > began + 40, _STEP_MS))
    got = spent([a for a in answered if began <= a.at < began + 40], ("long", "short"))
    assert got["long"] / sum(got.values()) <= 0.525
    assert got["long"] > 0
