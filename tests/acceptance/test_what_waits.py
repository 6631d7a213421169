"""Each API replica tells what waits for a pool, at all of them."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from tests.chaos.fleet import Fleet
from tests.stack import BIN, ROOT, mock_pool, wait_until

POOL = "decode-pool-a"
BODY = {"model": "mock", "prompt": "word", "max_tokens": 3000, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    pool = mock_pool(max_running=1, step_ms=50.0) | {"busy": {"max_queued": 1}}
    with Fleet(tmp_path_factory.mktemp("waits") / "fleet", {POOL: pool}, apis=2, workers=1) as fleet:
        yield fleet


def top(fleet: Fleet, url: str) -> str:
    command = [str(BIN / "xylem"), "top", "--once", "--url", url]
    env = fleet.stack.environment() | {"COLUMNS": "120"}
    return subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True, text=True).stdout


def test_each_replica_tells_what_waits_at_all_of_them(fleet: Fleet) -> None:
    """One request runs, one waits at the worker, and the others at the replicas that have their connections."""
    urls = fleet.urls()
    with ExitStack() as streams, httpx.Client(timeout=60) as client:
        for number in range(6):
            url = f"{urls[number % 2]}/v1/completions"
            streams.enter_context(client.stream("POST", url, json=BODY))
        for url in urls:
            wait_until(
                lambda url=url: f"{POOL} mock, both, 4 waiting for room" in top(fleet, url), "four wait", 30, 0.2
            )
            (worker,) = [line for line in top(fleet, url).splitlines() if " 1/1 " in line]
            assert " 1/1 +1 " in worker
    wait_until(lambda: "mock, both, " not in top(fleet, urls[0]), "nothing waits any more", 30, 0.2)
