"""Tests faults of the connections to Redis: no process ends, no answer is lost, and all goes on soon."""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx
import orjson
import pytest
from redis import Redis

from tests.batching import TEXT, answered
from tests.proxy import Proxied, proxied
from tests.serving import client_of
from tests.stack import BIN, PYTHON, ROOT, Stack, all_free, free_port, leases, mock_pool, stack, wait_until
from tests.throwing import KINDS

POOL = "decode-pool-a"
PATIENCE_S = 60.0
AWAY_S = float(os.environ.get("AWAY_S", "30"))  # `make away` asks for ten minutes


@pytest.fixture(scope="module")
def between(valkey_url: str) -> Iterator[Proxied]:
    with proxied(valkey_url) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def fleet(valkey_url: str, between: Proxied, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One of each process that talks to Redis, behind the proxy; their loops have heard of every kind of error."""
    home = tmp_path_factory.mktemp("away")
    pool = mock_pool(step_ms=10.0, answer_tokens=200_000, max_model_len=200_000, block_size=256)
    pool |= {"scale": {"least": 2, "most": 2}, "tiers": {"host_gb": 0.02, "disk": str(home / "kv")}}
    own = {
        "XYLEM_DEPLOYMENT": "away", "XYLEM_CELLS": f"{valkey_url}#other", "XYLEM_CANARY_S": "5", "XYLEM_USAGE": "true",
        "XYLEM_USAGE_URL": f"sqlite:///{home / 'usage.sqlite'}", "XYLEM_LOG_JSON": "true",
    }  # fmt: skip
    keyed_env = {
        "XYLEM_REQUIRE_KEYS": "true", "XYLEM_ADMIN_KEY": "k" * 32, "XYLEM_OIDC_AUDIENCE": "x",
        "XYLEM_OIDC_ISSUER": "http://127.0.0.1:9/", "XYLEM_WEBHOOK_URL": "http://127.0.0.1:9/",
    }  # fmt: skip
    with stack(between.url, home, {POOL: pool}, **own) as s:
        s.redis = Redis.from_url(valkey_url)  # the test's own way past the proxy
        with s.pools_file.open("a") as file:
            file.write("planner: {objectives: {mock: {ttft_s: 2, itl_s: 0.3}}}\n")
        thrower, celery = (PYTHON, "-m", "tests.throwing"), (str(BIN / "celery"), "-A", "app", "worker", "-Q")
        s.spawn("api", *thrower, str(BIN / "xylem"), "api")
        s.spawn("guarded", *thrower, str(BIN / "xylem"), "api", XYLEM_PORT=str(free_port()), **keyed_env)
        for name, queue in (("w1", POOL), ("w2", POOL), ("batch", "batch")):
            s.spawn(name, *thrower, *celery, queue)
        s.spawn("planner", *thrower, str(ROOT / "workers/planner/__main__.py"), "advise", "redis", "1")
        s.spawn("usage", *thrower, str(ROOT / "workers/usage/__main__.py"))
        s.wait_ready(2)
        for name, event in (("batch", "batch_worker_ready"), ("planner", "planner_leads"), ("usage", "writer_started")):
            wait_until(lambda name=name, event=event: event in s.log(name), f"{name} runs", 60)  # type: ignore[misc]
        yield s


def body(**asked: Any) -> dict[str, Any]:
    return {"model": "mock", "prompt": "A fox went out", "seed": 7, "ignore_eos": True, "max_tokens": 10, **asked}


def ask(s: Stack, **asked: Any) -> httpx.Response:
    return httpx.post(f"{s.url}/v1/completions", json=body(**asked), timeout=900, trust_env=False)


def all_live(s: Stack) -> None:
    exit_codes = {name: process.returncode for name, process in s.names.items() if process.poll() is not None}
    assert not exit_codes


def commands_are_heard(s: Stack) -> None:
    """A client leaves: its worker is told, and stops."""
    with (
        httpx.Client(timeout=60, trust_env=False) as http,
        http.stream("POST", f"{s.url}/v1/completions", json=body(max_tokens=100_000, stream=True)) as stream,
    ):
        next(stream.iter_lines())
    wait_until(lambda: all_free(s, POOL), "what nobody waits for has stopped")


def batches_are_made(s: Stack) -> None:
    answered(client_of(s.url, max_retries=2), [body()], TEXT)


def usage_is_written(s: Stack) -> None:
    wait_until(lambda: not s.redis.xlen(f"{s.deployment}:usage"), "usage is in the database")


def planner_plans(s: Stack) -> None:
    """Waits until the planner plans anew, as it says each time."""
    s.redis.delete(f"{s.deployment}:planning")
    wait_until(lambda: s.redis.exists(f"{s.deployment}:planning"), "the planner plans")


def workers_live(s: Stack) -> None:
    wait_until(lambda: len(leases(s, POOL)) == 2, "both workers have a lease")


def answers(s: Stack) -> None:
    """Checks that answers come, most likely from both workers."""
    answer = ask(s, n=6)
    assert answer.status_code == 200, answer.text


WORK = (workers_live, answers, commands_are_heard, batches_are_made, usage_is_written, planner_plans)


def goes_on(s: Stack, within_s: float, batches_s: float = 30) -> None:
    """Each process does its work again within so long from now, and none has ended. A batch takes several tasks."""
    began = time.monotonic()

    def took_s(work: Callable[[Stack], None]) -> float:
        work(s)
        return time.monotonic() - began

    with ThreadPoolExecutor(len(WORK)) as threads:
        took = {work.__name__: round(seconds, 1) for work, seconds in zip(WORK, threads.map(took_s, WORK), strict=True)}
    all_live(s)
    assert took.pop(batches_are_made.__name__) < batches_s
    assert max(took.values()) < within_s, took


# Those that no process here has: of a group of hosts, of an engine in it, and of prefill and decode apart.
_ELSEWHERE = {
    "adapters_not_followed",
    "group_not_seen",
    "nixl_not_pumped",
    "rooms_not_served",
    "weights_not_followed",
}


def heard(s: Stack) -> dict[str, set[str]]:
    """The kinds of errors that some process has logged of each loop, with their cause."""
    kinds_by_loop: dict[str, set[str]] = {}
    for name in s.names:
        for line in s.log(name).splitlines():
            entry = orjson.loads(line) if line.startswith("{") else {}
            kinds = kinds_by_loop.setdefault(entry.get("failing", entry.get("event", "")), set())
            stack = entry.get("exception", "")
            if stack.startswith("ValueError\nthen\n"):  # the cause, which was never raised
                kinds.add(stack.rpartition("\n")[2].strip())
            away = {"thrown": "StoreDown"} | {repr(kind("thrown")): kind.__name__ for kind in KINDS}
            if (error := away.get(str(entry.get("error")))) is not None:
                kinds.add(error)
    return kinds_by_loop


def test_no_loop_of_any_process_ends_of_an_error(fleet: Stack) -> None:
    """Any kind of error may be thrown into it: it is logged with its cause and counted, and the loop goes on."""
    loops = set(re.findall(r'keep(?:_in_thread)?\(\s*"([a-z_]+)"', "".join(
        path.read_text() for folder in ("app", "workers") for path in (ROOT / folder).rglob("*.py")
    )))  # fmt: skip
    names = {kind.__name__ for kind in KINDS} - {"CancelledError"}
    missing: dict[str, set[str]] = {}

    def all_heard() -> bool:
        by_loop = heard(fleet)
        missing.clear()
        missing.update({loop: rest for loop in loops - _ELSEWHERE if (rest := names - by_loop.get(loop, set()))})
        return not missing

    assert len(loops) > 30
    with suppress(AssertionError):
        wait_until(all_heard, "all", 60, every_s=0.5)
    assert not missing
    assert {loop for loop, kinds in heard(fleet).items() if "CancelledError" in kinds} > {
        "lease_not_renewed",
        "keys_not_read",
    }
    metrics = httpx.get(f"{fleet.url}/metrics", trust_env=False).text
    assert f'xylem_loop_failures_total{{failing="questions_not_answered"}} {len(KINDS)}.0' in metrics
    assert re.search(r"xylem_worker_loop_failures_total{.*} [1-9]", metrics)
    goes_on(fleet, 20)


def config(s: Stack, **values: object) -> None:
    for name, value in values.items():
        s.redis.config_set(name.replace("_", "-"), value)


def too_many_clients(s: Stack, _: Proxied) -> None:
    config(s, maxclients=1)
    for kind in ("normal", "pubsub"):
        s.redis.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


def all_well(s: Stack, between: Proxied) -> None:
    between.passes()
    s.redis.replicaof("NO", "ONE")
    config(s, maxclients=10_000, min_replicas_to_write=0, maxmemory=0)


def proxy_closes(_: Stack, between: Proxied) -> None:
    between.closes()


def proxy_holds(_: Stack, between: Proxied) -> None:
    between.holds()


def loading(_: Stack, between: Proxied) -> None:
    between.refuses("LOADING Redis is loading the dataset in memory")


def read_only(s: Stack, _: Proxied) -> None:
    s.redis.replicaof("127.0.0.1", 1)


def no_replicas(s: Stack, _: Proxied) -> None:
    config(s, min_replicas_to_write=1)


def out_of_memory(s: Stack, _: Proxied) -> None:
    config(s, maxmemory=1)


# How long it lasts, and how soon each process does its work again afterwards: docs/guide/redis.md says so, too.
FAULTS: list[tuple[Callable[[Stack, Proxied], None], float, float]] = [
    (proxy_closes, AWAY_S, 10), (proxy_holds, 12, 15), (loading, 6, 10), (too_many_clients, 4, 10), (read_only, 4, 10),
    (no_replicas, 6, 10), (out_of_memory, 4, 10),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "lasts_s", "within_s"), [pytest.param(*one, id=one[0].__name__) for one in FAULTS])
def test_no_process_ends_while_redis_is_away(
    fleet: Stack, between: Proxied, fault: Callable[[Stack, Proxied], None], lasts_s: float, within_s: float
) -> None:
    """Redis may be away in any way, for any time: what runs goes on, and nothing is lost."""
    before = {name: fleet.log(name) for name in ("w1", "w2", "batch")}
    with ThreadPoolExecutor(2) as threads:
        whole = ask(fleet, max_tokens=300).json()["choices"][0]["text"]
        running = threads.submit(ask, fleet, max_tokens=300)
        time.sleep(1)
        fault(fleet, between)
        try:
            waiting = threads.submit(ask, fleet)
            time.sleep(lasts_s)
        finally:
            all_well(fleet, between)
        goes_on(fleet, within_s)
        if lasts_s < PATIENCE_S:
            assert running.result().json()["choices"][0]["text"] == whole
        is_refused = fault is out_of_memory or lasts_s > PATIENCE_S
        assert waiting.result().status_code == (503 if is_refused else 200)
    log_lines = [line for name, old in before.items() for line in fleet.log(name).removeprefix(old).splitlines()]
    disconnects = [line for line in log_lines if "Connection to broker lost" in line]
    assert not [line for line in log_lines if "Frequency of restarts" in line]
    assert len(disconnects) <= 3 * (3 + lasts_s), "Celery's consumer pauses, and longer each time"


def test_connections_that_something_between_forgets_are_made_anew(fleet: Stack, between: Proxied) -> None:
    """Nothing comes and nothing is closed, as behind a firewall or NAT: noticed within seconds, and nothing is lost."""
    goes_on(fleet, 10)
    between.forgets()
    goes_on(fleet, 12, batches_s=40)  # a quiet machine takes half of it


def test_a_hangup_ends_each_process_as_it_should(fleet: Stack) -> None:
    """Each drains: an answer that runs is whole. A supervisor starts others."""
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(ask, fleet, max_tokens=300)
        time.sleep(1)
        for process in fleet.names.values():
            process.send_signal(signal.SIGHUP)
        exit_codes = {name: process.wait(60) for name, process in fleet.names.items()}
        assert running.result().json()["usage"]["completion_tokens"] == 300
    assert {name: code for name, code in exit_codes.items() if code not in (0, -signal.SIGHUP)} == {}
