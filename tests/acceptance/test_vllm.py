"""The whole system on real vLLM: one worker with a real model, and then two with a few of its layers.

With two: routing to the one that has the prefix, and answers that go on at the other one.
"""

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any

import httpx
import psutil
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.batching import answered
from tests.chaos.fleet import Fleet
from tests.serving import client_of
from tests.shallow import shallow_model
from tests.stack import ROOT, leases, metric, stop, wait_until

pytestmark = pytest.mark.timeout(400)

POOL = "decode-pool-a"
MODEL = "smollm2-135m-instruct"
ENGINE = {
    "model": MODEL,
    "engine": "vllm",
    "path": str(ROOT / ".xylem/models/SmolLM2-135M-Instruct"),
    "block_size": 32,
    "max_model_len": 2048,
    "max_running": 8,
    "args": {"dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 2**29},
}
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
PROMPTS = [f"Once upon a time, in the year {year}, a fisherman" for year in (1201, 1456, 1789, 1902)]


ENV = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "XYLEM_PATIENCE_S": "2"}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A worker with the real model, whose answers make sense and take their time; flex ones all wait for others."""
    engine = ENGINE | {"aside": {"step_share": 0}}
    with Fleet(tmp_path_factory.mktemp("vllm") / "fleet", {POOL: engine}, apis=1, workers=1, **ENV) as f:
        yield f


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two workers with a few layers of it. The tests that end workers are at the end of this file."""
    engine = ENGINE | {"path": str(shallow_model())}
    with Fleet(tmp_path_factory.mktemp("vllm") / "two", {POOL: engine}, apis=1, workers=2, **ENV) as f:
        yield f


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A worker with these layers that drafts from the prompt."""
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 2}
    engine = ENGINE | {"path": str(shallow_model()), "args": ENGINE["args"] | {"speculative_config": drafts}}
    with Fleet(tmp_path_factory.mktemp("vllm") / "drafting", {POOL: engine}, apis=1, workers=1, **ENV) as f:
        yield f


def used(fleet: Fleet) -> tuple[int, int]:
    """Requests and KV blocks in use, as the engine itself counts them."""
    (lease,) = leases(fleet.stack, POOL)
    return lease.load.running + lease.load.waiting, lease.load.used_blocks


def test_the_capital_of_france_is_paris_streamed_or_not(one: Fleet) -> None:
    """A real model answers, and both ways say the same."""
    with OpenAI(base_url=f"{one.stack.url}/v1", api_key="none") as c:
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


def test_concurrent_streams_are_batched_and_each_is_right(one: Fleet) -> None:
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
        async with AsyncOpenAI(base_url=f"{one.stack.url}/v1", api_key="none", timeout=300) as c:
            alone = [await ask(c, country) for country in countries]
            together = await asyncio.gather(*(ask(c, country) for country in countries))
        assert together == alone
        assert len(set(alone)) == len(countries)

    asyncio.run(run())


def test_drafts_change_no_answer_and_are_counted_where_they_were_accepted(drafting: Fleet) -> None:
    """The metrics count them by position, and the usage counts those of a prediction.

    Parameters that a CPU would sample wrongly are refused.
    """
    body = {"model": MODEL, "messages": [{"role": "user", "content": "one two three four five six, " * 8}]}
    body |= {"max_tokens": 60, "temperature": 0, "ignore_eos": True}
    url = f"{drafting.stack.url}/v1/chat/completions"
    plain = httpx.post(url, json=body, timeout=60).json()
    text = plain["choices"][0]["message"]["content"]
    prediction = httpx.post(url, json=body | {"prediction": {"type": "content", "content": text}}, timeout=60).json()
    assert prediction["choices"] == plain["choices"]
    details = prediction["usage"]["completion_tokens_details"]
    assert 0 < details["accepted_prediction_tokens"] <= 60
    wait_until(lambda: metric(drafting.stack, POOL, "accepted_tokens_1"), "a heartbeat")
    accepted_counts = [metric(drafting.stack, POOL, f"accepted_tokens_{position}") for position in (1, 2, 3)]
    assert accepted_counts == sorted(accepted_counts, reverse=True)
    assert metric(drafting.stack, POOL, "drafted_tokens") >= sum(accepted_counts)
    answer = httpx.post(url, json=body | {"temperature": 1.0, "top_k": 5}, timeout=60)
    assert answer.status_code == 400
    assert "temperature=1.0" in answer.json()["error"]["message"]
    assert httpx.post(url, json=body | {"top_k": 5}, timeout=60).json()["choices"] == plain["choices"]


def test_a_repeated_prompt_is_found_in_the_cache(one: Fleet) -> None:
    """Usage says how much of the prompt was not computed again."""
    body = {"model": MODEL, "prompt": "A long story begins here. " * 40, "max_tokens": 2, "temperature": 0}
    first, second = (httpx.post(f"{one.stack.url}/v1/completions", json=body, timeout=60).json() for _ in range(2))
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= 192
    assert second["choices"] == first["choices"]


def test_a_pinned_prefix_is_in_the_real_cache_at_the_first_chat_and_again_after_that_was_cleared(two: Fleet) -> None:
    """Both workers have it."""
    system = {"role": "system", "content": "You answer as the captain of a boat that leaves at nine. " * 12}
    with httpx.Client(base_url=two.stack.url, timeout=120) as http:
        prefix = http.post("/admin/prefixes", json={"model": MODEL, "messages": [system], "pin_s": 600}).json()
        blocks = prefix["pools"][POOL]["blocks"]
        assert (prefix["warm"], prefix["pools"][POOL]) == (True, {"blocks": blocks, "places": 2, "wanted": 2})
        http.post("/admin/clear_kv_blocks").raise_for_status()
        wait_until(lambda: http.get("/admin/prefixes").json()["data"][0]["warm"], "it is cached again")
        body = {"model": MODEL, "messages": [system, *FRANCE], "max_tokens": 1}
        usage = http.post("/v1/chat/completions", json=body).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == blocks * 32 > 3 * 32
        http.delete(f"/admin/prefixes/{prefix['id']}").raise_for_status()


def test_a_disconnect_frees_the_real_engine_long_before_the_end(one: Fleet) -> None:
    """The engine's own counters: no request runs and no KV block is held."""
    body = {"model": MODEL, "prompt": "Count: 1 2 3", "max_tokens": 1900, "ignore_eos": True, "stream": True}
    wait_until(lambda: used(one) == (0, 0), "the engine is idle")
    with httpx.stream("POST", f"{one.stack.url}/v1/completions", json=body, timeout=60) as r:
        lines = r.iter_lines()
        for _ in range(5):
            next(lines)
        wait_until(lambda: used(one)[0] == 1 and used(one)[1] > 0, "the lease shows the load")
    wait_until(lambda: used(one) == (0, 0), "the engine is idle again", 15)  # 1,900 tokens take longer


def test_the_engines_refusals_reach_the_client(one: Fleet) -> None:
    """Errors that only the engine can find come back as a 400 with the reason, streamed or not."""
    for stream in (False, True):
        body = {"model": MODEL, "prompt": "x", "max_tokens": 1, "logit_bias": {"999999999": 1}, "stream": stream}
        answer = httpx.post(f"{one.stack.url}/v1/completions", json=body, timeout=60)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_deadline_ends_the_request_in_the_engine(one: Fleet) -> None:
    """A timeout of the client's choosing, enforced where the cost is."""
    body = {"model": MODEL, "prompt": "x", "max_tokens": 1900, "ignore_eos": True, "timeout": 1.5}
    answer = httpx.post(f"{one.stack.url}/v1/completions", json=body, timeout=30)
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "deadline_exceeded"
    wait_until(lambda: used(one) == (0, 0), "the engine is idle again", 15)


def test_a_flex_answer_is_the_usual_one_though_it_gave_way(one: Fleet) -> None:
    """The real engine does so too: a request put aside in the middle of its answer goes on behind what it had said."""
    questions = [f"Tell me about the {thing}." for thing in ("sea", "moon", "wind", "rain", "sun", "snow")]

    async def ask(c: AsyncOpenAI, question: str, tier: str, tokens: int = 80) -> str:
        answer = await c.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": question}], temperature=0, max_tokens=tokens,
            service_tier=tier, extra_body={"ignore_eos": True},  # type: ignore[arg-type]
        )  # fmt: skip
        assert answer.service_tier == tier
        return answer.choices[0].message.content or ""

    async def run() -> None:
        async with AsyncOpenAI(base_url=f"{one.stack.url}/v1", api_key="none", timeout=120) as c:
            usual = await asyncio.gather(*(ask(c, question, "default") for question in questions))
            flex = [asyncio.create_task(ask(c, question, "flex")) for question in questions]
            # Both: the lease may be older than the end of the usual ones.
            while min((load := leases(one.stack, POOL)[0].load).aside, load.running) < len(flex):
                await asyncio.sleep(0.02)
            online = asyncio.create_task(ask(c, "Who was Newton?", "default", 400))
            while (load := leases(one.stack, POOL)[0].load).aside - load.running < 2:
                assert not online.done(), "most of them wait while the other one runs"
                await asyncio.sleep(0.02)
            online.cancel()
            assert await asyncio.gather(*flex) == usual

    asyncio.run(run())


def test_a_batch_answers_what_online_requests_are_answered(two: Fleet) -> None:
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

    def bare(body: dict[str, Any]) -> dict[str, Any]:
        usage = {k: n for k, n in body["usage"].items() if isinstance(n, int)}
        return {k: v for k, v in body.items() if k not in ("id", "created")} | {"usage": usage}

    async def online() -> list[dict[str, Any]]:
        async with httpx.AsyncClient(timeout=120) as http:
            answers = await asyncio.gather(*(http.post(f"{two.stack.url}{url}", json=body) for body in bodies))
        return [bare(answer.json()) for answer in answers]

    worker = two.stack.worker("batch", name="batch")
    try:
        with client_of(two.stack.url) as c:
            _, answers = answered(c, bodies, url, timeout_s=180)
        assert [bare(body) for body in answers] == asyncio.run(online())
    finally:
        stop(worker)


def test_the_second_request_goes_to_the_same_real_worker_and_finds_its_prefix_cached(two: Fleet) -> None:
    """Two workers are there; the prefix is cached until the caches are cleared."""
    question = "Read this. " + "The quick brown fox jumps over the lazy dog. " * 40 + "What jumps?"
    (url,) = two.urls()

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
        cached_tokens = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        return route["worker"], cached_tokens, [c["blocks_cached"] for c in route["candidates"]]

    for salt in "abcd":
        home, cached_tokens, block_counts = ask(salt)
        assert (cached_tokens, block_counts) == (0, [0, 0])
        time.sleep(0.5)  # its KV events are on their way
        again, cached_tokens, block_counts = ask(salt)
        assert again == home
        assert cached_tokens > 300
        assert sorted(block_counts) == [0, cached_tokens // 32]
    wait_until(lambda: two.leaked_blocks() == 0, "both engines are idle")
    reply = httpx.post(f"{url}/admin/clear_kv_blocks", timeout=30).json()
    assert (len(reply["cleared"]), reply["refused"]) == (2, {})
    for salt in "abcd":
        _, cached_tokens, block_counts = ask(salt)
        assert (cached_tokens, block_counts) == (0, [0, 0])


def streamed(fleet: Fleet, prompt: str, under_way: Barrier | None = None, tokens: int = 300) -> tuple[str, str]:
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
    running = {lease.worker.pid for lease in leases(fleet.stack, POOL) if lease.load.running}
    return next((name for name, _ in fleet.worker_names if fleet.process(name).pid in running), None)


def kill_engine(fleet: Fleet, name: str) -> None:
    """The processes that compute; the worker's own goes on."""
    for child in psutil.Process(fleet.process(name).pid).children(recursive=True):
        child.kill()


def kill_redis(fleet: Fleet) -> None:
    assert fleet.redis_process is not None
    stop(fleet.redis_process, signal.SIGKILL)
    fleet.start_redis()


@pytest.fixture(scope="module")
def usual(two: Fleet) -> list[str]:
    with ThreadPoolExecutor() as threads:
        return [text for text, _ in threads.map(partial(streamed, two), PROMPTS)]


@pytest.mark.parametrize("dies", ["redis", "an engine"])
def test_answers_of_real_engines_are_the_same_though_something_dies_under_them(
    two: Fleet, usual: list[str], dies: str
) -> None:
    """Greedy answers of a real model are the same whoever writes their ends. A worker without its engine ends."""
    under_way = Barrier(len(PROMPTS) + 1)
    with ThreadPoolExecutor() as threads:
        answers = [threads.submit(streamed, two, prompt, under_way) for prompt in PROMPTS]
        under_way.wait(60)
        if dies == "redis":
            kill_redis(two)
        else:
            victim = wait_until(lambda: busy(two), "an engine has some of them")
            kill_engine(two, victim)
        assert [answer.result(120) for answer in answers] == [(text, "data: [DONE]") for text in usual]
    if dies == "an engine":
        two.process(victim).wait(60)
        assert "engine_died" in two.stack.log(victim)
    wait_until(lambda: two.leaked_blocks() == 0, "nothing is held or reserved", 60)


def test_with_the_last_engine_dead_clients_are_told_that_there_is_none(two: Fleet) -> None:
    """A worker with a dead engine would be the least loaded of all, and get every request."""
    under_way, (last,) = Barrier(2), two.live_workers()
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(streamed, two, PROMPTS[0], under_way, 1500)
        under_way.wait(60)
        kill_engine(two, last)
        assert '"code":"no_worker"' in answer.result(60)[1]
    two.process(last).wait(60)
    assert "engine_died" in two.stack.log(last)
    wait_until(lambda: (two.stack.ready() or {})["workers"] == {MODEL: 0}, "nobody is left")
