"""Real processes, the mock engine, the official client: the fleet does what it is for."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import APIStatusError, AsyncOpenAI, OpenAI
from redis import Redis

from app.ids import PoolId, worker_queue
from app.keys import PRIORITY_STEPS, Keys
from tests.serving import client_of, serving
from tests.stack import Stack, free_port, leases, mock_pool, timeline, wait_until

KEYS = Keys("xylem")
POOL = "decode-pool-a"


@pytest.fixture
def fleet(valkey_url: str, tmp_path: Path) -> Iterator[Stack]:
    """An API and no worker yet, on an empty Redis; tests add workers."""
    Redis.from_url(valkey_url).flushall()
    with serving(valkey_url, tmp_path, {POOL: mock_pool(step_ms=10.0)}, {}, XYLEM_DEPLOYMENT="xylem") as s:
        yield s


def client(s: Stack) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{s.url}/v1", api_key="none", max_retries=0, timeout=60)


def reserved(s: Stack) -> dict[str, int]:
    """Requests reserved, by worker."""
    redis = s.redis
    return {key.decode(): redis.hlen(key) for key in redis.keys(f"{KEYS.prefix}reservations:*")}


async def ask(c: AsyncOpenAI, tokens: int, seed: int = 1, ids: list[str] | None = None) -> tuple[str, str | None, int]:
    """Text, finish reason and number of chunks of one streamed answer; `ids` gets its id."""
    stream = await c.chat.completions.create(
        model="mock",
        messages=[{"role": "user", "content": f"Tell me about {seed}."}],
        max_tokens=tokens,
        seed=seed,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    text, finish, chunks = "", None, 0
    async for chunk in stream:
        text += chunk.choices[0].delta.content or ""
        finish = chunk.choices[0].finish_reason or finish
        chunks += 1
    if ids is not None:
        ids.append(chunk.id)
    return text, finish, chunks


def test_two_workers_share_the_load_of_200_streams_and_every_token_comes_once_in_order(fleet: Stack) -> None:
    """The same seed gives the same text, so each stream is compared with its own undisturbed answer."""
    for name in ("w1", "w2"):
        fleet.worker(name=name)
    fleet.wait_ready(2)
    ids: list[str] = []

    async def run() -> None:
        async with client(fleet) as c:
            alone = [await ask(c, 40, seed) for seed in range(4)]
            together = await asyncio.gather(*(ask(c, 40, i % 4, ids) for i in range(200)))
        for i, (text, finish, _) in enumerate(together):
            assert (text, finish) == alone[i % 4][:2]
        assert len({text for text, *_ in alone}) == 4

    asyncio.run(run())
    share = Counter(timeline(fleet, id_)["workers"][-1]["worker"] for id_ in ids)
    assert len(share) == 2
    # A block that two prompts share attracts a little, and on a busy machine a lease may come late.
    assert min(share.values()) >= 50, share
    wait_until(lambda: sum(reserved(fleet).values()) == 0, "all reservations are released")
    assert "Traceback" not in fleet.log("api")


def test_a_token_is_an_event_while_the_client_keeps_up(fleet: Stack) -> None:
    """No tokens are merged at a real engine's pace."""
    fleet.worker()
    fleet.wait_ready(1)

    async def run() -> int:
        async with client(fleet) as c:
            return (await ask(c, 50))[2]

    # The opening chunk carries the role; a token that ends no character makes no event.
    assert 46 <= asyncio.run(run()) <= 51


def test_a_client_that_does_not_read_gets_all_tokens_in_fewer_events(valkey_url: str, tmp_path: Path) -> None:
    """The tokens that it has not read wait in the API merged, choice by choice, and not as thousands of events."""
    Redis.from_url(valkey_url).flushall()
    pools = {POOL: mock_pool(step_ms=1.0)}  # four seconds: no API replica stands still for so long
    with serving(valkey_url, tmp_path, pools, {"worker": POOL}, XYLEM_DEPLOYMENT="xylem") as s:
        body = {"model": "mock", "prompt": "x", "max_tokens": 4000, "seed": 1, "ignore_eos": True}
        body |= {"logprobs": 20}  # makes more than the sockets' buffers hold
        whole = httpx.post(f"{s.url}/v1/completions", json=body, timeout=60).json()
        wait_until(lambda: sum(reserved(s).values()) == 0, "what is reserved is the next one's")
        raw = json.dumps(body | {"stream": True}).encode()
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", s.port))
            head = b"POST /v1/completions HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            sock.sendall(head % len(raw) + raw)
            wait_until(lambda: sum(reserved(s).values()) == 1, "it runs")
            wait_until(lambda: sum(reserved(s).values()) == 0, "the engine has finished", 60)
            metrics = f"{s.url}/metrics"
            wait_until(lambda: "xylem_requests_in_flight 0" in httpx.get(metrics).text, "the API has all of it")
            lines = sock.makefile().read().splitlines()
    chunks = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
    assert "".join(c["text"] for c in chunks) == whole["choices"][0]["text"]
    assert sum(len(c["logprobs"]["tokens"]) for c in chunks) == 4000
    assert len(chunks) < 4000


def test_a_disconnect_frees_the_engine_within_a_second(fleet: Stack) -> None:
    """Streamed or not: nobody pays for an answer that nobody reads."""
    fleet.worker()
    fleet.wait_ready(1)
    body = {"model": "mock", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4000, "ignore_eos": True}
    with httpx.stream("POST", f"{fleet.url}/v1/chat/completions", json=body | {"stream": True}, timeout=30) as r:
        lines = r.iter_lines()  # to be kept: collecting it would close the connection
        while "content" not in next(lines):
            pass
        assert sum(reserved(fleet).values()) == 1
    wait_until(lambda: sum(reserved(fleet).values()) == 0, "released after the stream was closed", 1)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{fleet.url}/v1/chat/completions", json=body, timeout=0.5)
    wait_until(lambda: sum(reserved(fleet).values()) == 0, "released after the connection was closed", 1)
    wait_until(
        lambda: [(x.load.running, x.load.used_blocks) for x in leases(fleet)] == [(0, 0)], "the engine is empty", 3
    )


def raw_request(**fields: object) -> bytes:
    """One that goes on until somebody stops it, as bytes."""
    body = json.dumps({"model": "mock", "prompt": "x", "max_tokens": 4000, "ignore_eos": True} | fields).encode()
    head = b"POST /v1/completions HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


@pytest.mark.parametrize(("stream", "behind", "together"), [
    (True, 1, True), (False, 1, False), (True, 200, False), (False, 200, True),
])  # fmt: skip
def test_a_disconnect_ends_all_that_came_over_the_connection(
    fleet: Stack, stream: bool, behind: int, together: bool
) -> None:
    """Requests that wait behind the one that runs (pipelining) neither hide it nor run."""
    fleet.worker()
    fleet.wait_ready(1)
    first, others = raw_request(stream=stream), raw_request(user="x" * 1000) * behind
    with socket.create_connection(("127.0.0.1", fleet.port)) as sock:
        sock.sendall(first + others if together else first)
        wait_until(lambda: sum(reserved(fleet).values()) == 1, "the first one runs")
        time.sleep(0.5)  # it is watched for its client's leaving
        if not together:
            sock.sendall(others)
            time.sleep(0.5)
        assert sum(reserved(fleet).values()) == 1
    wait_until(lambda: sum(reserved(fleet).values()) == 0, "released after the connection was closed", 3)
    metrics = f"{fleet.url}/metrics"
    wait_until(lambda: "xylem_requests_in_flight 0" in httpx.get(metrics).text, "the API awaits nothing", 3)
    wait_until(
        lambda: [(x.load.running, x.load.used_blocks) for x in leases(fleet)] == [(0, 0)], "the engine is empty", 3
    )
    assert sum(reserved(fleet).values()) == 0


def test_requests_that_wait_behind_another_are_answered_in_order(fleet: Stack) -> None:
    """All of them, if they are not too many."""
    fleet.worker()
    fleet.wait_ready(1)
    requests = [raw_request(max_tokens=i % 5 + 1) for i in range(10)]
    with socket.create_connection(("127.0.0.1", fleet.port), timeout=30) as sock:
        sock.sendall(b"".join(requests) + b"GET /live HTTP/1.1\r\nconnection: close\r\n\r\n")
        output = b"".join(iter(lambda: sock.recv(65536), b""))
    assert [int(x) for x in re.findall(rb'"completion_tokens":(\d+)', output)] == [1, 2, 3, 4, 5] * 2
    assert output.endswith(b'{"status":"ok"}')


def test_a_draining_worker_finishes_its_streams_and_gets_no_new_ones(fleet: Stack) -> None:
    """SIGTERM in the middle of streams: every answer is whole, and the process ends with 0."""
    going = fleet.worker(name="going")
    fleet.wait_ready(1)
    new: list[str] = []

    async def run() -> list[tuple[str, str | None, int]]:
        async with client(fleet) as c:
            reference = (await ask(c, 200))[:2]
            fleet.worker(name="staying")
            await asyncio.to_thread(fleet.wait_ready, 2)
            before = [asyncio.create_task(ask(c, 200)) for _ in range(20)]
            await asyncio.sleep(1)
            going.send_signal(signal.SIGTERM)
            await asyncio.to_thread(fleet.wait_ready, 1)
            after = [asyncio.create_task(ask(c, 200, ids=new)) for _ in range(10)]
            answers = await asyncio.gather(*before, *after)
            assert all(a[:2] == reference for a in answers)
            return answers

    assert len(asyncio.run(run())) == 30
    assert going.wait(20) == 0
    (staying,) = leases(fleet)
    assert {timeline(fleet, id_)["workers"][-1]["worker"] for id_ in new} == {staying.worker.id}
    assert sum(reserved(fleet).values()) == 0


def test_what_waits_for_a_draining_worker_goes_on_while_others_still_run_there(valkey_url: str, tmp_path: Path) -> None:
    """The request is handed back at once, and not when the last running answer is over."""
    Redis.from_url(valkey_url).flushall()
    pool = mock_pool(step_ms=20.0, max_running=1, answer_tokens=100_000)
    own = {"XYLEM_DRAIN_TIMEOUT_S": "240", "XYLEM_DEPLOYMENT": "xylem"}
    with serving(valkey_url, tmp_path, {POOL: pool}, {"going": POOL}, **own) as s:
        going = s.names["going"]
        (lease,) = leases(s)
        queue = worker_queue(PoolId(POOL), lease.worker.id)
        names = [Keys(s.deployment).queue(queue, step) for step in PRIORITY_STEPS]

        def waiting() -> int:
            return sum(s.redis.llen(name) for name in names)

        async def run() -> None:
            async with client(s) as c:
                tasks = [asyncio.create_task(ask(c, 4000)) for _ in range(8)]
                await asyncio.to_thread(
                    wait_until, lambda: waiting() and leases(s)[0].load.running, "one runs, and some are in its queue"
                )
                going.send_signal(signal.SIGTERM)
                await asyncio.to_thread(wait_until, lambda: not waiting(), "none is in its queue", 60)
                assert going.poll() is None
                assert sum(reserved(s).values()) > 0, "others still run there"
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run(run())
        assert going.wait(60) == 0


def test_what_a_draining_worker_never_began_runs_elsewhere(valkey_url: str, tmp_path: Path) -> None:
    """More requests than it has threads for wait in its queue; they are handed back, not lost."""
    Redis.from_url(valkey_url).flushall()
    pools, workers = {POOL: mock_pool(step_ms=20.0, max_running=2)}, {"going": POOL, "staying": POOL}
    with serving(valkey_url, tmp_path, pools, workers, XYLEM_DEPLOYMENT="xylem") as s:
        going = s.names["going"]
        ids: list[str] = []

        def shared() -> bool:
            counts = reserved(s).values()
            return len(counts) == 2 and min(counts) > 4

        async def run() -> None:
            async with client(s) as c:
                tasks = [asyncio.create_task(ask(c, 30, ids=ids)) for _ in range(24)]
                await asyncio.to_thread(wait_until, shared, "both have more than they run")
                going.send_signal(signal.SIGTERM)
                answers = await asyncio.gather(*tasks)
                assert {a[:2] for a in answers} == {answers[0][:2]}

        asyncio.run(run())
        assert going.wait(20) == 0
        (staying,) = leases(s)
        new_workers = [record["workers"][-1]["worker"] for id_ in ids if (record := timeline(s, id_))["attempts"] > 1]
        assert set(new_workers) == {staying.worker.id}
        wait_until(lambda: sum(reserved(s).values()) == 0, "all reservations are released")


def test_a_killed_workers_requests_go_on_elsewhere_within_seconds(fleet: Stack) -> None:
    """Answers that had begun go on too: each client gets one whole answer, after a pause."""
    victim = fleet.worker(name="killed")
    fleet.worker(name="other")
    fleet.wait_ready(2)
    ids: list[str] = []

    async def one(c: AsyncOpenAI) -> str:
        text, finish, _chunks = await ask(c, 500, ids=ids)
        assert len(text.split()) == 500
        return str(finish)

    def begun() -> bool:
        return all(lease.load.running > 1 for lease in leases(fleet))

    async def run() -> Counter[str]:
        async with client(fleet) as c:
            tasks = [asyncio.create_task(one(c)) for _ in range(10)]
            await asyncio.to_thread(wait_until, begun, "both have begun some")
            victim.kill()
            async with asyncio.timeout(15):
                return Counter(await asyncio.gather(*tasks))

    assert asyncio.run(run()) == {"length": 10}
    (other,) = leases(fleet)
    new_workers = [record["workers"][-1]["worker"] for id_ in ids if (record := timeline(fleet, id_))["attempts"] > 1]
    assert set(new_workers) == {other.worker.id}
    with OpenAI(base_url=f"{fleet.url}/v1", api_key="none") as c:
        answer = c.completions.create(model="mock", prompt="still there?", max_tokens=3)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3


def test_workers_come_and_go_while_the_api_runs(valkey_url: str, tmp_path: Path) -> None:
    """None → 503 with a clear message; one → answers; none again → 503, when it isn't only being restarted."""
    Redis.from_url(valkey_url).flushall()
    with (
        serving(
            valkey_url, tmp_path, {POOL: mock_pool(step_ms=10.0)}, {}, XYLEM_DEPLOYMENT="xylem", XYLEM_PATIENCE_S="1"
        ) as fleet,
        client_of(fleet.url) as c,
    ):

        def status() -> int:
            try:
                c.completions.create(model="mock", prompt="hi", max_tokens=1)
            except APIStatusError as exc:
                return exc.status_code
            return 200

        assert status() == 503
        worker = fleet.worker()
        fleet.wait_ready(1)
        assert status() == 200
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(15) == 0
        assert status() == 503


def test_two_api_replicas_use_one_fleet(fleet: Stack) -> None:
    """Each gets its own tokens from the one worker."""
    fleet.worker()
    other = free_port()
    fleet.api("api2", port=other)
    fleet.wait_ready(1)
    wait_until(lambda: _listens(other), "the second API listens")

    async def run() -> None:
        second = AsyncOpenAI(base_url=f"http://127.0.0.1:{other}/v1", api_key="none", max_retries=0, timeout=300)
        async with client(fleet) as c1, second as c2:
            answers = await asyncio.gather(*(ask(c, 60, seed) for c in (c1, c2) for seed in range(20)))
        texts = [text for text, *_ in answers]
        assert texts[:20] == texts[20:]
        assert len(set(texts)) == 20

    asyncio.run(run())


def _listens(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/live", timeout=2).status_code == 200
    except httpx.TransportError:
        return False


def test_flower_shows_workers_queues_and_tasks_but_no_prompt(fleet: Stack) -> None:
    """Started as typed in docs/guide/machines.md: `celery -A app flower`. It listens on this machine only."""
    fleet.worker()
    fleet.wait_ready(1)
    flower, _ = fleet.flower(FLOWER_UNAUTHENTICATED_API="1")

    def task_shown() -> str | None:
        httpx.post(f"{fleet.url}/v1/completions", json={"model": "mock", "prompt": "a secret word", "max_tokens": 2})
        tasks = httpx.get(f"{flower}/api/tasks", timeout=10).text
        # Of a task that began before Flower listened it knows the end but not the name.
        return tasks if "SUCCESS" in tasks and "app.tasks.decode.decode" in tasks else None

    tasks = wait_until(task_shown, "a task is shown with its name", 30, every_s=1)
    assert "secret" not in tasks
    (lease,) = leases(fleet)

    def worker_shown() -> bool:
        workers = httpx.get(f"{flower}/api/workers?refresh=1", timeout=10).text
        return f"{POOL}.{lease.worker.id}" in workers and f"{POOL}-{lease.worker.id}@" in workers

    wait_until(worker_shown, "the worker and its queues are shown", 30, every_s=1)
    listening = subprocess.run(["ss", "-ltn"], capture_output=True, text=True, check=True).stdout
    assert flower.removeprefix("http://") in listening


def test_prompts_are_in_no_log_and_no_task(fleet: Stack) -> None:
    """Arguments are ids; logs are verbs with fields."""
    fleet.worker(XYLEM_LOG_LEVEL="debug")
    fleet.wait_ready(1)
    word = "Rumpelstiltskin"
    for stream in (False, True):
        body = {"model": "mock", "prompt": word, "max_tokens": 2, "stream": stream}
        assert httpx.post(f"{fleet.url}/v1/completions", json=body).status_code == 200
    httpx.post(f"{fleet.url}/v1/completions", json={"model": "mock", "prompt": word, "max_tokens": word})
    time.sleep(0.5)
    for name in ("api", "worker"):
        assert word not in fleet.log(name)
