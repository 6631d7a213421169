"""The prefix index on a server of its own: it dies and hangs under load, and only knowledge of prefixes is missing."""

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.redis_server import RedisServer, another_redis
from tests.serving import serving
from tests.stack import Stack, mock_pool, wait_until

POOL = "decode-pool-a"
WORDS = "the quick brown fox jumps over the lazy dog and runs "


@pytest.fixture(scope="module")
def fleet(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, RedisServer]]:
    """One replica and two workers."""
    path = tmp_path_factory.mktemp("index")
    with (
        another_redis(path) as index,
        serving(
            valkey_url, path, {POOL: mock_pool(speedup=20.0)}, {"one": POOL, "two": POOL}, XYLEM_INDEX_URL=index.url
        ) as s,
    ):
        yield s, index


def answered(s: Stack, prompt: str, salt: str) -> int:
    """Blocks that routing knew to be cached; the answer is complete."""
    body = {"model": "mock", "prompt": prompt, "max_tokens": 8, "ignore_eos": True, "cache_salt": salt}
    answer = httpx.post(f"{s.url}/v1/completions", json=body, headers={"x-xylem-explain": "1"}, timeout=30)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 8
    return int(json.loads(answer.headers["x-xylem-route"])[0]["blocks_cached"])


def knows_prefixes(s: Stack, salt: str) -> None:
    prompt = "once upon a time " + WORDS * 15
    answered(s, prompt, salt)
    wait_until(lambda: answered(s, prompt, salt) > 0, "the prefix is known")


def test_the_index_alone_is_on_the_other_server(fleet: tuple[Stack, RedisServer]) -> None:
    s, index = fleet
    knows_prefixes(s, "apart")
    kinds = {key.split(":")[1] for key in index.client.keys(f"{s.deployment}:*")}  # type: ignore[union-attr]
    assert kinds == {"cached", "cached-count", "cache-numbers"}
    assert not [key for key in s.redis.keys(f"{s.deployment}:*") if key.split(b":")[1].startswith(b"cache")]


@pytest.mark.parametrize("hangs", [False, True])
def test_without_its_server_requests_are_answered_and_later_prefixes_known_again(
    fleet: tuple[Stack, RedisServer], *, hangs: bool
) -> None:
    """Blocks that were cached before are known again, too: workers write the whole index anew."""
    s, index = fleet
    before = "long before " + WORDS * 15
    wait_until(lambda: answered(s, before, f"before-{hangs}") > 0, "the prefix is known")
    with ThreadPoolExecutor(8) as threads:
        under_load = [threads.submit(answered, s, f"{n} " + WORDS * 5, f"load-{hangs}") for n in range(200)]
        if hangs:
            index.process.send_signal(signal.SIGSTOP)
        else:
            index.kill()
        for request in under_load:
            request.result()
        assert answered(s, before, f"before-{hangs}") == 0, "nobody knows"
    assert "index_away" in s.log("api")
    assert "placement_failed" not in s.log("api")
    if hangs:
        index.process.send_signal(signal.SIGCONT)
    else:
        index.start()
    wait_until(lambda: answered(s, before, f"before-{hangs}") > 0, "what was cached before is known again")
    knows_prefixes(s, f"after-{hangs}")
