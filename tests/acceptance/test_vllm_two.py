"""Two workers with real vLLM: routing to the one that has the prefix, and answers that go on at the other one."""

import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import httpx
import psutil
import pytest

from tests.acceptance.test_vllm import MODEL
from tests.acceptance.test_vllm import POOL as ONE
from tests.chaos.fleet import Fleet
from tests.stack import leases, stop, wait_until

pytestmark = pytest.mark.timeout(400)

POOL = "decode-pool-a"
PROMPTS = [f"Once upon a time, in the year {year}, a fisherman" for year in (1201, 1456, 1789, 1902)]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Loading takes half a minute. What ends workers is at the end of this file."""
    env = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "XYLEM_PATIENCE_S": "2"}
    with Fleet(tmp_path_factory.mktemp("two") / "fleet", {POOL: ONE}, apis=1, workers=2, **env) as f:
        yield f


def test_the_second_request_goes_to_the_same_real_worker_and_finds_its_prefix_cached(fleet: Fleet) -> None:
    """Of two; until the caches are cleared."""
    question = "Read this. " + "The quick brown fox jumps over the lazy dog. " * 40 + "What jumps?"
    (url,) = fleet.urls()

    def ask(salt: str) -> tuple[str, int, list[int]]:
        """The worker, the cached tokens, and the cached blocks of all candidates as routing knew them."""
        answer = httpx.post(
            f"{url}/v1/chat/completions",
            json={
                "model": MODEL,
                "messages": [{"role": "user", "content": question}],
                "max_tokens": 4,
                "temperature": 0,
                "cache_salt": salt,
            },
            headers={"x-xylem-explain": "1"},
            timeout=60,
        )
        (route,) = json.loads(answer.headers["x-xylem-route"])
        cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        return route["worker"], cached, [c["blocks_cached"] for c in route["candidates"]]

    for salt in "abcd":
        home, cached, known = ask(salt)
        assert (cached, known) == (0, [0, 0])
        time.sleep(0.5)  # its KV events are on their way
        again, cached, known = ask(salt)
        assert again == home
        assert cached > 300
        assert sorted(known) == [0, cached // 32]
    wait_until(lambda: fleet.leaked_blocks() == 0, "both engines are idle", 10)
    cleared = httpx.post(f"{url}/admin/clear_kv_blocks", timeout=30).json()
    assert (len(cleared["cleared"]), cleared["refused"]) == (2, {})
    for salt in "abcd":
        _, cached, known = ask(salt)
        assert (cached, known) == (0, [0, 0])


def streamed(fleet: Fleet, prompt: str, under_way: Barrier | None = None, tokens: int = 60) -> tuple[str, str]:
    """Text and last event of a greedy answer; its fourth event waits for those of others."""
    body: dict[str, Any] = {
        "model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
    }  # fmt: skip
    text, last, count = "", "", 0
    with httpx.stream("POST", f"{fleet.urls()[0]}/v1/completions", json=body, timeout=120) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: "):
                continue
            last, count = line, count + 1
            if count == 4 and under_way is not None:
                under_way.wait(60)
            if line.startswith("data: {") and "error" not in line:
                text += json.loads(line[6:])["choices"][0]["text"]
    return text, last


def busy(fleet: Fleet) -> str | None:
    """A worker that has a request, by its lease."""
    running = {lease.pid for lease in leases(fleet.stack, POOL) if lease.running}
    return next((name for name, _ in fleet.worker_names if fleet.process(name).pid in running), None)


def kill_engine(fleet: Fleet, name: str) -> None:
    """The processes that compute; the worker's own goes on."""
    for child in psutil.Process(fleet.process(name).pid).children(recursive=True):
        child.kill()


def kill_redis(fleet: Fleet) -> None:
    assert fleet.redis_process is not None
    stop(fleet.redis_process, signal.SIGKILL)
    fleet.start_redis()


@pytest.mark.parametrize("dies", ["redis", "an engine"])
def test_answers_of_real_engines_are_the_same_though_something_dies_under_them(fleet: Fleet, dies: str) -> None:
    """Greedy answers of a real model are the same whoever writes their ends. A worker without its engine ends."""
    usual = [streamed(fleet, prompt)[0] for prompt in PROMPTS]
    under_way = Barrier(len(PROMPTS) + 1)
    with ThreadPoolExecutor() as threads:
        answers = [threads.submit(streamed, fleet, prompt, under_way) for prompt in PROMPTS]
        under_way.wait(60)
        if dies == "redis":
            kill_redis(fleet)
        else:
            victim = wait_until(lambda: busy(fleet), "an engine has some of them", 3)
            kill_engine(fleet, victim)
        assert [answer.result(120) for answer in answers] == [(text, "data: [DONE]") for text in usual]
    if dies == "an engine":
        fleet.process(victim).wait(30)
        assert "engine_died" in fleet.stack.log(victim)
    wait_until(lambda: fleet.leaked_blocks() == 0, "nothing is held or reserved", 15)


def test_with_the_last_engine_dead_clients_are_told_that_there_is_none(fleet: Fleet) -> None:
    """A worker with a dead engine would be the least loaded of all, and get every request."""
    under_way, (last,) = Barrier(2), fleet.live_workers()
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(streamed, fleet, PROMPTS[0], under_way, 1500)
        under_way.wait(60)
        kill_engine(fleet, last)
        assert '"code":"no_worker"' in answer.result(60)[1]
    fleet.process(last).wait(30)
    assert "engine_died" in fleet.stack.log(last)
    wait_until(lambda: (fleet.stack.ready() or {})["workers"] == {MODEL: 0}, "nobody is left", 10)
