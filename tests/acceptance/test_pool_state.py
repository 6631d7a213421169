"""What operators do to a pool under load: sleep, wake, pause, other weights. Real processes, the mock engine."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import APIError, AsyncOpenAI, InternalServerError, OpenAI

from tests.stack import Stack, leases, metric, mock_pool, stack, stop, wait_until

POOL, NAPPER, SPLIT = "decode-pool-a", "decode-pool-nap", ("prefill-pool-s", "decode-pool-s")
pytestmark = pytest.mark.timeout(240)
PROMPT = "Say something about the sea, and then about the weights. "


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    for version in ("v1", "v2", "v3"):
        (folder / version).mkdir()
    return folder


@pytest.fixture(scope="module")
def fleet(valkey_url: str, tmp_path_factory: pytest.TempPathFactory, weights: Path) -> Iterator[Stack]:
    """Three workers of a pool, one of a pool that requests wake, and a prefill and a decode worker."""
    split = mock_pool(model="split", max_model_len=4096)
    pools: dict[str, Any] = {
        POOL: mock_pool(max_model_len=4096, step_ms=4.0),
        NAPPER: mock_pool(model="napper", wake_s=0.2) | {"wake_on_request": True},
        SPLIT[0]: split | {"role": "prefill", "disagg": {"remote_tokens": 16, "remote_wait_s": 60}},
        SPLIT[1]: split | {"role": "decode"},
    }
    env = {"XYLEM_DEPLOYMENT": "state", "XYLEM_WEIGHTS_FOLDER": str(weights), "XYLEM_PATIENCE_S": "20"}
    with stack(valkey_url, tmp_path_factory.mktemp("state"), pools, **env) as s:
        s.api()
        for i in range(3):
            s.worker(POOL, f"worker{i}")
        s.worker(NAPPER, "napper")
        s.worker(SPLIT[0], "prefill")
        s.worker(SPLIT[1], "decode")
        s.wait_ready(3)
        s.wait_ready(model="napper")
        s.wait_ready(model="split")
        wait_until(lambda: leases(s, SPLIT[0]), "the prefill worker")
        yield s
        assert "Traceback" not in s.log("api")


@pytest.fixture(autouse=True)
def awake(fleet: Stack) -> Iterator[None]:
    """Each test begins with a fleet that serves, with its own weights."""
    yield
    for pool in (POOL, NAPPER):
        change(fleet, "resume", pool)
        change(fleet, "wake", pool)
    for pool in (POOL, *SPLIT):
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
    """What each version answers, by its fingerprint."""
    found: dict[str | None, str] = {None: ask(s, tokens=tokens).choices[0].text}
    for version in ("v1", "v2"):
        change(s, "weights", version=version, path=str(weights / version), rolling=False)
        answer = ask(s, tokens=tokens)
        assert answer.system_fingerprint == version
        found[version] = answer.choices[0].text
    change(s, "weights", version="", rolling=False)
    assert len({*found.values()}) == 3
    return found


class Load:
    """Answers that come one after the other on several connections; `answers`: their texts and fingerprints."""

    def __init__(self) -> None:
        self.answers: list[tuple[str | None, str]] = []
        self.errors: list[Exception] = []


@asynccontextmanager
async def load(s: Stack, tokens: int = 60, at_once: int = 8) -> AsyncIterator[Load]:
    """Half of the answers are streamed. Entering returns when some are complete."""
    made, over = Load(), asyncio.Event()
    client = AsyncOpenAI(base_url=f"{s.url}/v1", api_key="x", max_retries=0)

    async def whole() -> None:
        answer = await client.completions.create(model="mock", prompt=PROMPT, max_tokens=tokens, temperature=0)
        assert answer.choices[0].finish_reason == "length"
        made.answers.append((answer.system_fingerprint, answer.choices[0].text))

    async def streamed() -> None:
        text, prints = "", set()
        stream = await client.completions.create(
            model="mock", prompt=PROMPT, max_tokens=tokens, temperature=0, stream=True
        )
        async for chunk in stream:
            prints.add(chunk.system_fingerprint)
            text += chunk.choices[0].text
        (one,) = prints
        made.answers.append((one, text))

    async def ask_on(number: int) -> None:
        while not over.is_set():
            try:
                await (streamed() if number % 2 else whole())
            except (APIError, AssertionError) as exc:
                made.errors.append(exc)
                return

    tasks = [asyncio.create_task(ask_on(number)) for number in range(at_once)]
    try:
        await until(lambda: len(made.answers) >= at_once or made.errors)
        yield made
        count = len(made.answers)
        await until(lambda: len(made.answers) >= count + 2 * at_once or made.errors)
    finally:
        over.set()
        await asyncio.gather(*tasks)
        await client.close()


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("mode", ["wait", "abort", "keep"])
async def test_workers_fall_asleep_and_wake_under_load_and_no_answer_is_lost(fleet: Stack, mode: str) -> None:
    """With `abort` others go on with the answers, with `keep` they go on when the worker wakes. All are the same."""
    async with load(fleet) as made:
        told = await changes(fleet, "sleep", level=1, mode=mode, keep_awake=1)
        assert len(told["done"]) == 2
        assert sum(w["takes_requests"] for w in told["workers"].values()) == 1
        assert sum(w["asleep"] for w in told["workers"].values()) == 2
        before = len(made.answers)
        await until(lambda: len(made.answers) >= before + 8 or made.errors)
        assert len((await changes(fleet, "wake"))["done"]) == 3
    assert not made.errors
    assert len({*made.answers}) == 1
    assert all(worker["takes_requests"] for worker in shown(fleet)["workers"].values())


async def test_each_answer_under_a_swap_is_of_one_version_and_names_it(fleet: Stack, weights: Path) -> None:
    """Rolling, so that both versions serve meanwhile; once it is acknowledged only the new one does."""
    known = {(version, text) for version, text in texts(fleet, weights).items()}
    async with load(fleet) as made:
        for version in ("v1", "v2"):
            told = await changes(fleet, "weights", version=version, path=str(weights / version))
            assert len(told["done"]) == 3, told
            began = len(made.answers)
            await until(lambda began=began: len(made.answers) >= began + 8 or made.errors)
    assert not made.errors
    assert {*made.answers} <= known
    assert {version for version, _ in made.answers} == {None, "v1", "v2"}
    answer = ask(fleet)
    assert (answer.system_fingerprint, answer.choices[0].text) in known
    assert answer.system_fingerprint == "v2"


def test_no_kv_of_other_weights_is_used(fleet: Stack, weights: Path) -> None:
    long = PROMPT * 40
    ask(fleet, prompt=long)
    assert ask(fleet, prompt=long).usage.prompt_tokens_details.cached_tokens
    change(fleet, "weights", version="v1", path=str(weights / "v1"))
    assert not ask(fleet, prompt=long).usage.prompt_tokens_details.cached_tokens
    assert ask(fleet, prompt=long).usage.prompt_tokens_details.cached_tokens


def test_a_prompt_is_computed_apart_only_with_the_same_weights(fleet: Stack, weights: Path) -> None:
    """Else the worker that answers computes it; with the same version on both, KV is handed over again."""

    def computed_apart(word: str) -> bool:
        before = metric(fleet, SPLIT[1], "pulled_tokens")
        ask(fleet, "split", f"{word} " + PROMPT * 60)
        wait_until(lambda: leases(fleet, SPLIT[1])[0].load.running == 0, "it has ended")
        return _settled(lambda: metric(fleet, SPLIT[1], "pulled_tokens")) > before

    assert computed_apart("First")
    change(fleet, "weights", SPLIT[0], version="v1", path=str(weights / "v1"))
    assert not computed_apart("Second")
    change(fleet, "weights", SPLIT[1], version="v1", path=str(weights / "v1"))
    assert computed_apart("Third")


def _settled(read: Any) -> float:
    """A metric, after two more heartbeats."""
    beats = [read()]
    wait_until(lambda: beats.append(read()) or len(beats) > 3, "some heartbeats", every_s=0.5)
    return float(beats[-1])


def test_a_worker_that_is_restarted_has_the_pools_weights(fleet: Stack, weights: Path) -> None:
    told = change(fleet, "weights", version="v2", path=str(weights / "v2"))
    assert told["wanted"]["weights"] == "v2"
    stop(fleet.names["worker0"])
    fleet.worker(POOL, "worker0")
    fleet.wait_ready(3)
    assert {worker["weights"] for worker in shown(fleet)["workers"].values()} == {"v2"}


def test_pause_keeps_answers_that_resume_goes_on_with(fleet: Stack) -> None:
    expected = ask(fleet, tokens=400).choices[0].text
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
    assert text == expected


async def test_requests_to_a_paused_pool_wait_for_it(fleet: Stack) -> None:
    await changes(fleet, "pause", mode="wait")
    asked = asyncio.create_task(asyncio.to_thread(ask, fleet))
    await asyncio.sleep(0.5)
    assert not asked.done()
    await changes(fleet, "resume")
    assert (await asked).choices[0].finish_reason == "length"


async def test_a_kept_answer_goes_on_with_new_weights_and_says_so(fleet: Stack, weights: Path) -> None:
    """The loop of reinforcement learning: pause, update, resume."""
    known = texts(fleet, weights, 400)
    await changes(fleet, "weights", version="v1", path=str(weights / "v1"), rolling=False)
    asked = asyncio.create_task(asyncio.to_thread(ask, fleet, tokens=400))
    await until(lambda: any(lease.load.running for lease in leases(fleet, POOL)))
    await changes(fleet, "pause", mode="keep")
    told = await changes(fleet, "weights", version="v2", path=str(weights / "v2"), rolling=False)
    assert len(told["done"]) == 3
    await changes(fleet, "resume")
    answer = await asked
    assert answer.system_fingerprint == "v1+v2"
    assert answer.choices[0].text not in known.values()
    assert answer.choices[0].text[:20] == known["v1"][:20]


def test_an_answer_that_nobody_can_go_on_with_is_refused_by_name(fleet: Stack, weights: Path) -> None:
    """Aborted in its middle, and the only weights left are others."""
    with OpenAI(base_url=f"{fleet.url}/v1", api_key="x", max_retries=0) as client:
        stream = client.completions.create(model="mock", prompt=PROMPT, max_tokens=2000, temperature=0, stream=True)
        next(stream)
        change(fleet, "weights", version="v3", path=str(weights / "v3"), rolling=False, mode="abort")
        with pytest.raises(APIError, match="weights were changed"):
            list(stream)


def test_a_request_wakes_a_pool_that_says_so(fleet: Stack) -> None:
    assert change(fleet, "sleep", NAPPER, level=2)["done"]
    assert ask(fleet, "napper").choices[0].finish_reason == "length"
    (worker,) = shown(fleet, NAPPER)["workers"].values()
    assert worker["takes_requests"]
    assert shown(fleet, NAPPER)["wanted"]["keep_awake"] == 1


def test_a_sleeping_pool_refuses_requests_by_name(fleet: Stack) -> None:
    change(fleet, "sleep")
    with pytest.raises(InternalServerError, match="sleep") as refused:
        ask(fleet)
    assert refused.value.status_code == 503
    assert refused.value.code == "pool_asleep"
    assert refused.value.response.headers["retry-after"]


def test_a_worker_that_starts_in_a_sleeping_pool_sleeps(fleet: Stack) -> None:
    change(fleet, "sleep", keep_awake=1)
    asleep = next(lease for lease in leases(fleet, POOL) if lease.state.asleep)
    process = next(p for name, p in fleet.names.items() if name.startswith("worker") and p.pid == asleep.worker.pid)
    stop(process, signal.SIGKILL)
    wait_until(lambda: len(leases(fleet, POOL)) == 2, "it has gone")
    fleet.worker(POOL, next(name for name, p in fleet.names.items() if p is process))
    wait_until(lambda: len(leases(fleet, POOL)) == 3, "another one")
    assert sum(bool(lease.state.asleep) for lease in leases(fleet, POOL)) == 2


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
    expected = ask(fleet).choices[0].text
    told = change(fleet, "weights", version="v9", path=str(weights / "v9"))
    assert len(told["refused"]) == 1
    assert "no folder" in next(iter(told["refused"].values()))
    assert told["wanted"]["weights"] == ""
    assert all(worker["takes_requests"] for worker in told["workers"].values())
    assert ask(fleet).choices[0].text == expected


def test_profiles_start_and_stop(fleet: Stack) -> None:
    assert len(change(fleet, "profile", action="start")["done"]) == 3
    refused = change(fleet, "profile", action="start")["refused"]
    assert all("already" in reason for reason in refused.values())
    assert len(change(fleet, "profile", action="stop")["done"]) == 3


def test_experts_are_recorded(fleet: Stack) -> None:
    assert len(change(fleet, "experts", action="start")["done"]) == 3
    assert len(change(fleet, "experts", action="dump")["done"]) == 3
    assert len(change(fleet, "experts", action="stop")["done"]) == 3
    assert set(change(fleet, "experts", action="dump")["refused"].values()) == {"Nothing is recorded."}


def test_workers_change_their_ranks_and_serve_with_all_of_them(fleet: Stack) -> None:
    """More, and fewer again."""
    expected = ask(fleet).choices[0].text
    for ranks in (2, 1):
        told = change(fleet, "scale_elastic_ep", data_parallel_size=ranks)
        assert (len(told["done"]), told["refused"]) == (3, {})
        assert [lease.worker.ranks for lease in leases(fleet, POOL)] == [ranks] * 3
        with ThreadPoolExecutor(12) as threads:  # more than one rank of each has seats for
            answers = list(threads.map(lambda _: ask(fleet), range(12)))
        assert {answer.choices[0].text for answer in answers} == {expected}
    assert all(worker["takes_requests"] for worker in shown(fleet)["workers"].values())
