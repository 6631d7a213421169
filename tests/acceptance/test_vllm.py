"""The whole system with a real model on real vLLM."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from openai import AsyncOpenAI, OpenAI
from redis import Redis

from app.messages import decode_lease
from tests.stack import ROOT, Stack, leases, stack, stop, wait_until

MODEL = "smollm2-135m-instruct"
POOL = {
    "model": MODEL,
    "engine": "vllm",
    "path": str(ROOT / ".xylem/models/SmolLM2-135M-Instruct"),
    "block_size": 32,
    "max_model_len": 2048,
    "max_running": 8,
    "args": {"dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 2**29},
}
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def fleet(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Loading takes most of a minute, so all tests share one worker."""
    Redis.from_url(valkey_url).flushall()
    with stack(valkey_url, tmp_path_factory.mktemp("vllm"), {"decode-pool-a": POOL}) as s:
        s.api()
        s.worker()
        s.wait_ready(1, MODEL, timeout_s=240)
        yield s


def used(s: Stack) -> tuple[int, int]:
    """Requests and KV blocks in use, as the engine itself counts them."""
    redis = Redis.from_url(s.redis_url)
    (key,) = redis.keys("xylem:worker:*")
    raw = redis.get(key)
    assert isinstance(raw, bytes)
    lease = decode_lease(raw)
    return lease.running + lease.waiting, lease.used_blocks


@pytest.mark.timeout(300)
def test_the_capital_of_france_is_paris_streamed_or_not(fleet: Stack) -> None:
    """A real model answers, and both ways say the same."""
    with OpenAI(base_url=f"{fleet.url}/v1", api_key="none") as c:
        whole = c.chat.completions.create(model=MODEL, messages=FRANCE, temperature=0, max_tokens=20)  # type: ignore[arg-type]
        stream = c.chat.completions.create(
            model=MODEL,
            messages=FRANCE,  # type: ignore[arg-type]
            temperature=0,
            max_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "Paris" in text
    assert whole.choices[0].message.content == text
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens > 3
    assert whole.choices[0].finish_reason == "stop"


def test_concurrent_streams_are_batched_and_each_is_right(fleet: Stack) -> None:
    """Every stream has its own words in its own order: those of the same question asked alone."""
    countries = ("France", "Italy", "Germany", "Japan")

    async def ask(c: AsyncOpenAI, country: str) -> str:
        stream = await c.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": f"What is the capital of {country}?"}],
            temperature=0,
            max_tokens=24,
            stream=True,
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def run() -> None:
        async with AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key="none") as c:
            alone = [await ask(c, country) for country in countries]
            together = await asyncio.gather(*(ask(c, country) for country in countries))
        assert together == alone
        assert len(set(alone)) == len(countries)

    asyncio.run(run())


def test_a_repeated_prompt_is_found_in_the_cache(fleet: Stack) -> None:
    """Usage says how much of the prompt was not computed again."""
    body = {"model": MODEL, "prompt": "A long story begins here. " * 40, "max_tokens": 2, "temperature": 0}
    first, second = (httpx.post(f"{fleet.url}/v1/completions", json=body, timeout=60).json() for _ in range(2))
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= 192
    assert second["choices"] == first["choices"]


def test_a_disconnect_frees_the_real_engine_within_a_second(fleet: Stack) -> None:
    """The engine's own counters: no request runs and no KV block is held."""
    body = {"model": MODEL, "prompt": "Count: 1 2 3", "max_tokens": 1900, "ignore_eos": True, "stream": True}
    wait_until(lambda: used(fleet) == (0, 0), "the engine is idle", 5)
    with httpx.stream("POST", f"{fleet.url}/v1/completions", json=body, timeout=60) as r:
        lines = r.iter_lines()
        for _ in range(5):
            next(lines)
        wait_until(lambda: used(fleet)[0] == 1 and used(fleet)[1] > 0, "the lease shows the load", 5)
    # Leases are written once a second, so the abort has that much less time.
    wait_until(lambda: used(fleet) == (0, 0), "the engine is idle again", 2)


@pytest.mark.timeout(240)
def test_a_batch_answers_what_online_requests_are_answered(fleet: Stack) -> None:
    """Fifty lines on real vLLM: every body is the online one's, but for its id and times."""
    countries = ("France", "Italy", "Japan", "Peru", "Kenya")
    bodies: list[dict[str, Any]] = [
        {
            "model": MODEL, "temperature": 0, "max_tokens": 10 + i % 7,
            "messages": [{"role": "user", "content": f"{i}. What is the capital of {countries[i % 5]}?"}],
        }
        for i in range(50)
    ]  # fmt: skip
    url = "/v1/chat/completions"
    lines = [{"custom_id": str(i), "method": "POST", "url": url, "body": body} for i, body in enumerate(bodies)]

    def bare(body: dict[str, Any]) -> dict[str, Any]:
        usage = {k: n for k, n in body["usage"].items() if isinstance(n, int)}
        return {k: v for k, v in body.items() if k not in ("id", "created")} | {"usage": usage}

    async def online() -> list[dict[str, Any]]:
        async with httpx.AsyncClient(timeout=120) as http:
            answers = await asyncio.gather(*(http.post(f"{fleet.url}{url}", json=body) for body in bodies))
        return [bare(answer.json()) for answer in answers]

    worker = fleet.worker("batch", name="batch")
    try:
        with OpenAI(base_url=f"{fleet.url}/v1", api_key="none") as c:
            raw = "\n".join(map(json.dumps, lines)).encode()
            file = c.files.create(file=("in.jsonl", raw), purpose="batch")
            batch = c.batches.create(input_file_id=file.id, endpoint=url, completion_window="24h")
            wait_until(lambda: c.batches.retrieve(batch.id).status == "completed", "the batch is done", 180, 0.5)
            output = c.batches.retrieve(batch.id).output_file_id
            assert output is not None
            answers = {
                line["custom_id"]: bare(line["response"]["body"])
                for line in map(json.loads, c.files.content(output).text.splitlines())
            }
        assert [answers[str(i)] for i in range(50)] == asyncio.run(online())
    finally:
        stop(worker)


def test_the_engines_refusals_reach_the_client(fleet: Stack) -> None:
    """What only the engine can judge comes back as a 400 with its reason, streamed or not."""
    for stream in (False, True):
        body = {"model": MODEL, "prompt": "x", "max_tokens": 1, "logit_bias": {"999999999": 1}, "stream": stream}
        answer = httpx.post(f"{fleet.url}/v1/completions", json=body, timeout=60)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_deadline_ends_the_request_in_the_engine(fleet: Stack) -> None:
    """A timeout of the client's choosing, enforced where the cost is."""
    body = {"model": MODEL, "prompt": "x", "max_tokens": 1900, "ignore_eos": True, "timeout": 1.5}
    answer = httpx.post(f"{fleet.url}/v1/completions", json=body, timeout=30)
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "deadline_exceeded"
    wait_until(lambda: used(fleet) == (0, 0), "the engine is idle again", 3)


@pytest.mark.timeout(180)
def test_a_flex_answer_is_the_usual_one_though_it_gave_way(fleet: Stack) -> None:
    """On the real engine too: sent away in the middle, it goes on behind what it had said."""
    questions = [f"Tell me about the {thing}." for thing in ("sea", "moon", "wind", "rain", "sun", "snow")]

    async def ask(c: AsyncOpenAI, question: str, tier: str, tokens: int = 80) -> str:
        answer = await c.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": question}], temperature=0, max_tokens=tokens,
            service_tier=tier,  # type: ignore[arg-type]
        )  # fmt: skip
        assert answer.service_tier == tier
        return answer.choices[0].message.content or ""

    async def run() -> None:
        async with AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key="none", timeout=120) as c:
            usual = [await ask(c, question, "default") for question in questions]
            flex = [asyncio.create_task(ask(c, question, "flex")) for question in questions]
            while leases(fleet, "decode-pool-a")[0].running < len(flex):  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.02)
            online = asyncio.create_task(ask(c, "Who was Newton?", "default", 40))
            gone = False
            while not online.done():
                (lease,) = leases(fleet, "decode-pool-a")
                gone |= lease.aside - lease.running >= 2
                await asyncio.sleep(0.02)
            assert gone, "most of them waited while the other one ran"
            assert await asyncio.gather(*flex) == usual

    asyncio.run(run())


def test_a_worker_that_ends_leaves_no_process(valkey_url: str, tmp_path: Path, fleet: Stack) -> None:
    """vLLM's engine is a process of its own; SIGTERM ends both. Last, since it ends the shared worker."""
    worker = fleet.names["worker"]
    below = psutil.Process(worker.pid).children(recursive=True)
    assert below
    worker.terminate()
    assert worker.wait(30) == 0
    wait_until(  # Python's own resource tracker ends a moment after those whose resources it tracks
        lambda: not [p for p in below if p.is_running() and p.status() != psutil.STATUS_ZOMBIE], "no process is left", 5
    )
