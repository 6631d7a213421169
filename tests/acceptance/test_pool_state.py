"""Tests what operators do to a pool under load: sleep, wake, pause, other weights.

Real processes, the mock engine.
"""

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from openai import APIError, AsyncOpenAI, InternalServerError, OpenAI

from tests.background import until
from tests.serving import served_by
from tests.stack import Stack, leases, metric, mock_pool, stop, wait_until

POOL, PREFILL, DECODE = "decode-pool-a", "prefill-pool-s", "decode-pool-s"
T = TypeVar("T")
GUIDE = Path(__file__).parents[2] / "docs/guide/weights.md"
pytestmark = pytest.mark.timeout(240)
PROMPT = "Say something about the sea, and then about the weights. "


@pytest.fixture(scope="module")
def weights(fleet: Stack) -> Path:
    for version in ("v1", "v2", "v3"):
        (fleet.directory / version).mkdir()
    return fleet.directory


SPLIT = mock_pool(model="split", max_model_len=4096, wake_s=0.2)
# Three workers of a pool, and a prefill and a decode worker, which requests wake.
fleet = served_by(
    {
        POOL: mock_pool(max_model_len=16_384, step_ms=4.0),
        PREFILL: SPLIT | {"role": "prefill", "disagg": {"remote_tokens": 16, "remote_wait_s": 60}},
        DECODE: SPLIT | {"role": "decode", "wake_on_request": True, "sleep_level": 2},
    },
    {"worker0": POOL, "worker1": POOL, "worker2": POOL, "prefill": PREFILL, "decode": DECODE},
    XYLEM_WEIGHTS_FOLDER="{path}", XYLEM_PATIENCE_S="20",
)  # fmt: skip


@pytest.fixture(autouse=True)
def awake(fleet: Stack) -> Iterator[None]:
    """Each test begins with a fleet that serves, with its own weights."""
    yield
    for pool in (POOL, DECODE):
        change(fleet, "resume", pool)
        change(fleet, "wake", pool)
    for pool in (POOL, PREFILL, DECODE):
        assert not change(fleet, "weights", pool, version="")["refused"]


def change(s: Stack, what: str, pool: str = POOL, **body: Any) -> dict[str, Any]:
    answer = httpx.post(f"{s.url}/admin/pools/{pool}/{what}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def changes(s: Stack, what: str, pool: str = POOL, **body: Any) -> dict[str, Any]:
    return await asyncio.to_thread(change, s, what, pool, **body)


def shown(s: Stack, pool: str = POOL) -> dict[str, Any]:
    return dict(httpx.get(f"{s.url}/admin/pools/{pool}/state").json())


def ask(s: Stack, model: str = "mock", prompt: str = PROMPT, tokens: int = 60, **body: Any) -> Any:
    with OpenAI(base_url=f"{s.url}/v1", api_key="x", max_retries=0) as client:
        return client.completions.create(model=model, prompt=prompt, max_tokens=tokens, temperature=0, **body)


def texts(s: Stack, weights: Path, tokens: int = 60) -> dict[str | None, str]:
    """The answer of each version of the weights, by its fingerprint."""
    text_by_version: dict[str | None, str] = {None: ask(s, tokens=tokens).choices[0].text}
    for version in ("v1", "v2"):
        change(s, "weights", version=version, path=str(weights / version), rolling=False)
        answer = ask(s, tokens=tokens)
        assert answer.system_fingerprint == version
        text_by_version[version] = answer.choices[0].text
    change(s, "weights", version="", rolling=False)
    assert len({*text_by_version.values()}) == 3
    return text_by_version


class Enough(Exception):
    """The loop has run often enough."""


def await_one(found: Callable[[], list[T]]) -> T:
    return wait_until(found, "there is one")[0]


class Load:
    """Answers that come one after the other on several connections; `answers`: their texts and fingerprints."""

    def __init__(self) -> None:
        self.answers: list[tuple[str | None, str]] = []
        self.errors: list[Exception] = []


@asynccontextmanager
async def load(s: Stack, tokens: int = 60, at_once: int = 8) -> AsyncIterator[Load]:
    """Half of the answers are streamed. Entering returns when some are complete."""
    traffic, over = Load(), asyncio.Event()
    client = AsyncOpenAI(base_url=f"{s.url}/v1", api_key="x", max_retries=0, timeout=300)

    async def whole() -> None:
        answer = await client.completions.create(model="mock", prompt=PROMPT, max_tokens=tokens, temperature=0)
        assert answer.choices[0].finish_reason == "length"
        traffic.answers.append((answer.system_fingerprint, answer.choices[0].text))

    async def streamed() -> None:
        text, prints = "", set()
        stream = await client.completions.create(
            model="mock", prompt=PROMPT, max_tokens=tokens, temperature=0, stream=True
        )
        async for chunk in stream:
            prints.add(chunk.system_fingerprint)
            text += chunk.choices[0].text
        (one,) = prints
        traffic.answers.append((one, text))

    async def ask_on(number: int) -> None:
        while not over.is_set():
            try:
                await (streamed() if number % 2 else whole())
            except (APIError, AssertionError) as exc:
                traffic.errors.append(exc)
                return

    tasks = [asyncio.create_task(ask_on(number)) for number in range(at_once)]
    try:
        await until(lambda: len(traffic.answers) >= at_once or traffic.errors)
        yield traffic
        count = len(traffic.answers)
        await until(lambda: len(traffic.answers) >= count + at_once or traffic.errors)
    finally:
        over.set()
        await asyncio.gather(*tasks)
        await client.close()


@pytest.mark.parametrize("mode", ["wait", "abort", "keep"])
async def test_workers_fall_asleep_and_wake_under_load_and_no_answer_is_lost(fleet: Stack, mode: str) -> None:
    """Other workers go on with the answers with `abort`; with `keep`, they go on when the worker wakes.

    All are the same.
    """
    async with load(fleet) as traffic:
        reply = await changes(fleet, "sleep", level=1, mode=mode, keep_awake=1)
        assert len(reply["done"]) == 2
        assert sum(w["takes_requests"] for w in reply["workers"].values()) == 1
        assert sum(w["asleep"] for w in reply["workers"].values()) == 2
        before = len(traffic.answers)
        await until(lambda: len(traffic.answers) >= before + 8 or traffic.errors)
        assert len((await changes(fleet, "wake"))["done"]) == 3
    assert not traffic.errors
    assert len({*traffic.answers}) == 1
    assert all(worker["takes_requests"] for worker in shown(fleet)["workers"].values())


async def test_each_answer_under_a_swap_is_of_one_version_and_names_it(fleet: Stack, weights: Path) -> None:
    """Rolling, so that both versions serve meanwhile; once it is acknowledged only the new one does."""
    known_answers = {(version, text) for version, text in texts(fleet, weights).items()}
    async with load(fleet) as traffic:
        for version in ("v1", "v2"):
            reply = await changes(fleet, "weights", version=version, path=str(weights / version))
            assert len(reply["done"]) == 3, reply
            began = len(traffic.answers)
            await until(lambda began=began: len(traffic.answers) >= began + 8 or traffic.errors)
    assert not traffic.errors
    assert {*traffic.answers} <= known_answers
    assert {version for version, _ in traffic.answers} == {None, "v1", "v2"}
    answer = ask(fleet)
    assert (answer.system_fingerprint, answer.choices[0].text) in known_answers
    assert answer.system_fingerprint == "v2"


def test_no_kv_of_other_weights_is_used(fleet: Stack, weights: Path) -> None:
    long = PROMPT * 40
    ask(fleet, prompt=long)
    assert ask(fleet, prompt=long).usage.prompt_tokens_details.cached_tokens
    change(fleet, "weights", version="v1", path=str(weights / "v1"))
    assert not ask(fleet, prompt=long).usage.prompt_tokens_details.cached_tokens
    assert ask(fleet, prompt=long).usage.prompt_tokens_details.cached_tokens


def test_a_prompt_is_computed_apart_only_with_the_same_weights(fleet: Stack, weights: Path) -> None:
    """The worker that answers computes it otherwise.

    KV is handed over again when both workers have the same version.
    """

    def computed_apart(word: str) -> bool:
        before = metric(fleet, DECODE, "pulled_tokens")
        ask(fleet, "split", f"{word} " + PROMPT * 60)
        wait_until(lambda: leases(fleet, DECODE)[0].load.running == 0, "it has ended")
        return _settled(lambda: metric(fleet, DECODE, "pulled_tokens")) > before

    assert computed_apart("First")
    change(fleet, "weights", PREFILL, version="v1", path=str(weights / "v1"))
    assert not computed_apart("Second")
    change(fleet, "weights", DECODE, version="v1", path=str(weights / "v1"))
    assert computed_apart("Third")


def _settled(read: Any) -> float:
    """A metric, after two more heartbeats."""
    beats = [read()]
    wait_until(lambda: beats.append(read()) or len(beats) > 3, "some heartbeats", every_s=0.5)
    return float(beats[-1])


def test_pause_keeps_answers_that_resume_goes_on_with(fleet: Stack) -> None:
    reference = ask(fleet, tokens=400).choices[0].text
    with OpenAI(base_url=f"{fleet.url}/v1", api_key="x", max_retries=0) as client:
        stream = client.completions.create(model="mock", prompt=PROMPT, max_tokens=400, temperature=0, stream=True)
        text = "".join(next(stream).choices[0].text for _ in range(3))
        change(fleet, "pause", mode="keep")
        assert sum(lease.load.running for lease in leases(fleet, POOL)) == 1
        (refusal,) = change(fleet, "sleep", mode="wait")["refused"].values()
        assert "paused" in refusal
        change(fleet, "wake")
        change(fleet, "resume")
        text += "".join(chunk.choices[0].text for chunk in stream)
    assert text == reference


def test_one_worker_can_be_changed_alone(fleet: Stack) -> None:
    """The change holds for that worker only: others, and those that start later, go on."""
    one = leases(fleet, POOL)[0].worker.id
    reply = change(fleet, "pause", workers=[one])
    assert reply["done"] == [one]
    assert reply["wanted"]["paused"] is None
    assert [worker for worker, state in reply["workers"].items() if not state["takes_requests"]] == [one]
    assert ask(fleet).choices[0].finish_reason == "length"
    change(fleet, "resume", workers=[one])
    assert all(worker["takes_requests"] for worker in shown(fleet)["workers"].values())


async def test_requests_to_a_paused_pool_wait_for_it(fleet: Stack) -> None:
    await changes(fleet, "pause", mode="wait")
    task = asyncio.create_task(asyncio.to_thread(ask, fleet))
    await asyncio.sleep(0.5)
    assert not task.done()
    await changes(fleet, "resume")
    assert (await task).choices[0].finish_reason == "length"


async def test_the_documented_loop_of_reinforcement_learning_runs(fleet: Stack, weights: Path) -> None:
    """The code runs as it is written.

    The answer that is in progress goes on with each of the weights, and says so.
    """
    together, apart = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    prints: list[str | None] = []

    async def read() -> None:
        async with AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key="x", max_retries=0, timeout=300) as client:
            stream = await client.completions.create(
                model="mock", prompt=PROMPT, max_tokens=15_000, temperature=0, stream=True
            )
            async with stream:
                async for chunk in stream:
                    prints.append(chunk.system_fingerprint)
                    if chunk.system_fingerprint == "step-7":
                        return

    def train_and_save(path: str) -> None:
        Path(path).mkdir()
        if path.endswith("-2"):
            raise Enough
        before = {"0": [None], "1": [None, "step-0"]}.get(path[-1], [None, "step-0", "step-1"])
        wait_until(lambda: list(dict.fromkeys(prints)) == before, f"{before} have made some of it")

    names: dict[str, Any] = {"train_and_save": train_and_save}
    reader = asyncio.create_task(read())
    await until(lambda: prints)
    for block in (together, apart):
        code = block.replace("http://localhost:8000", fleet.url).replace("/weights/", f"{weights}/")
        with suppress(Enough):
            await asyncio.to_thread(exec, code, names)
    names["pool"].close()
    await reader
    assert list(dict.fromkeys(prints)) == [None, "step-0", "step-1", "step-7"]
    assert ask(fleet).system_fingerprint == "step-7"


async def test_a_whole_answer_names_all_weights_that_made_it(fleet: Stack, weights: Path) -> None:
    def blocks() -> int:
        return sum(lease.load.used_blocks for lease in leases(fleet, POOL))

    await until(lambda: not blocks())
    task = asyncio.create_task(asyncio.to_thread(ask, fleet, tokens=1500))
    await until(lambda: blocks() > 3)  # more than the prompt takes
    await changes(fleet, "weights", version="v2", path=str(weights / "v2"), rolling=False, mode="keep")
    assert (await task).system_fingerprint == "initial+v2"


async def test_a_worker_that_dies_in_a_change_is_named_and_its_successor_has_the_new_weights(
    fleet: Stack, weights: Path
) -> None:
    """Its answer can't go on with other weights, and ends by name."""
    async with AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key="x", max_retries=0, timeout=300) as client:
        stream = await client.completions.create(
            model="mock", prompt=PROMPT, max_tokens=15_000, temperature=0, stream=True
        )
        await anext(stream)
        has_it = await_one(lambda: [lease for lease in leases(fleet, POOL) if lease.load.running])
        changing = asyncio.create_task(
            changes(fleet, "weights", version="v3", path=str(weights / "v3"), rolling=False, mode="wait")
        )
        await until(lambda: sum(lease.state.weights == "v3" for lease in leases(fleet, POOL)) == 2)
        (name,) = [n for n, p in fleet.names.items() if p.pid == has_it.worker.pid]
        stop(fleet.names[name], signal.SIGKILL)
        assert (await changing)["refused"] == {has_it.worker.id: "it has gone"}
        with pytest.raises(APIError, match="weights were changed"):
            async for _ in stream:
                pass
    fleet.worker(POOL, name)
    await until(lambda: [lease.state.weights for lease in leases(fleet, POOL)] == ["v3"] * 3)


def test_a_request_wakes_a_pool_that_says_so(fleet: Stack) -> None:
    assert change(fleet, "sleep", DECODE)["done"]
    assert [lease.state.asleep for lease in leases(fleet, DECODE)] == [2], "the pool's own level"
    assert ask(fleet, "split").choices[0].finish_reason == "length"
    (worker,) = shown(fleet, DECODE)["workers"].values()
    assert worker["takes_requests"]
    assert shown(fleet, DECODE)["wanted"]["keep_awake"] == 1


def test_a_sleeping_pool_refuses_requests_by_name(fleet: Stack) -> None:
    change(fleet, "sleep")
    with pytest.raises(InternalServerError, match="sleep") as exc_info:
        ask(fleet)
    assert exc_info.value.status_code == 503
    assert exc_info.value.code == "pool_asleep"
    assert exc_info.value.response.headers["retry-after"]


@pytest.mark.parametrize(
    ("what", "body", "named"),
    [
        ("sleep", {"level": 3}, "level"),
        ("wake", {"tags": ["bed"]}, "tags"),
        ("pause", {"mode": "hard"}, "mode"),
        ("weights", {"version": "v1"}, "version"),
        ("weights", {"version": "v1", "path": "/etc"}, "path"),
        ("weights", {"version": "", "path": "/etc"}, "version"),
        ("resume", {"workers": ["nobody"]}, "workers"),
        ("profile", {"action": "look"}, "action"),
        ("experts", {"action": "look"}, "action"),
        ("scale_elastic_ep", {"data_parallel_size": 0}, "data_parallel_size"),
    ],
)
def test_what_can_not_be_is_refused_with_its_field(fleet: Stack, what: str, body: dict[str, Any], named: str) -> None:
    answer = httpx.post(f"{fleet.url}/admin/pools/{POOL}/{what}", json=body, timeout=30)
    assert answer.status_code == 400, answer.text
    assert named in answer.text


def test_weights_that_no_worker_can_load_change_nothing(fleet: Stack, weights: Path) -> None:
    reference = ask(fleet).choices[0].text
    reply = change(fleet, "weights", version="v9", path=str(weights / "v9"))
    assert len(reply["refused"]) == 1
    assert "no folder" in next(iter(reply["refused"].values()))
    assert reply["wanted"]["weights"] == ""
    assert all(worker["takes_requests"] for worker in reply["workers"].values())
    assert ask(fleet).choices[0].text == reference


def test_profiles_start_and_stop(fleet: Stack) -> None:
    assert len(change(fleet, "profile", action="start")["done"]) == 3
    refusals = change(fleet, "profile", action="start")["refused"]
    assert all("already" in reason for reason in refusals.values())
    assert len(change(fleet, "profile", action="stop")["done"]) == 3


def test_experts_are_recorded(fleet: Stack) -> None:
    assert len(change(fleet, "experts", action="start")["done"]) == 3
    assert len(change(fleet, "experts", action="dump")["done"]) == 3
    assert len(change(fleet, "experts", action="stop")["done"]) == 3
    assert set(change(fleet, "experts", action="dump")["refused"].values()) == {"Nothing is recorded."}


def test_workers_change_their_ranks_and_serve_with_all_of_them(fleet: Stack) -> None:
    """More, and fewer again."""
    reference = ask(fleet).choices[0].text
    for ranks in (2, 1):
        reply = change(fleet, "scale_elastic_ep", data_parallel_size=ranks)
        assert (len(reply["done"]), reply["refused"]) == (3, {})
        assert [lease.worker.ranks for lease in leases(fleet, POOL)] == [ranks] * 3
        with ThreadPoolExecutor(12) as threads:  # more than one rank of each has seats for
            answers = list(threads.map(lambda _: ask(fleet), range(12)))
        assert {answer.choices[0].text for answer in answers} == {reference}
    assert all(worker["takes_requests"] for worker in shown(fleet)["workers"].values())
