"""Several teams on one full fleet, of two API replicas and two workers: `make bench NAME=tenants` measures the same."""

import asyncio
from pathlib import Path
from statistics import median

import pytest

from ops.bench.tenants.fleet import fleet
from ops.bench.tenants.shares import WEIGHTS, beside_floods, beside_long_prompts, error, spent

_STEP_MS = 25.0


@pytest.mark.timeout(400)
def test_two_floods_share_the_engines_by_weight_and_a_third_tenant_hardly_waits(tmp_path: Path) -> None:
    """The floods last 40 seconds.

    The third tenant's first tokens come in a small part of the time that the floods wait.
    """
    with fleet(tmp_path, {**WEIGHTS, "quiet": 1.0}, _STEP_MS) as urls:
        answers, ttfts = asyncio.run(beside_floods(urls, 160, _STEP_MS))
    assert error(spent(answers, WEIGHTS), WEIGHTS) <= 0.05
    assert sorted(ttfts)[int(0.9 * len(ttfts))] < median(a.at - a.began for a in answers) / 3


@pytest.mark.timeout(400)
def test_a_flood_of_long_prompts_takes_no_more_than_its_share(tmp_path: Path) -> None:
    """Half of the engines, with 8,000-token prompts and short answers, beside short prompts and longer answers.

    By nominal costs. The fleet shares what short steps and long prompts really take, so that the share falls with the
    machine's speed: 0.51 on two idle cores, 0.28 on the same beside five busy processes.
    """
    with fleet(tmp_path, {"long": 1.0, "short": 1.0}, _STEP_MS) as urls:
        answers = asyncio.run(beside_long_prompts(urls, 20, _STEP_MS))
    shares = spent(answers, ("long", "short"))
    assert 0.05 <= shares["long"] / sum(shares.values()) <= 0.6
