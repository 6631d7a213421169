"""Prefill and decode on workers of their own: real vLLM on both sides, the KV over NIXL, the official client."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil
import pytest

from app.tokenizing.tokenizer import load_tokenizer
from tests.acceptance.test_disagg import together
from tests.chaos.fleet import TEMPLATE
from tests.serving import client_of, standing_still
from tests.shallow import shallow_model
from tests.stack import (
    ROOT,
    Stack,
    all_free,
    indexed_blocks,
    leases,
    metric,
    stack,
    timeline,
    wait_until,
    worker_process,
)

pytestmark = pytest.mark.timeout(300)

PREFILL, DECODE = "prefill-pool-a", "decode-pool-a"
MODEL, WEIGHTS = "smollm2-135m-instruct", ROOT / ".xylem/models/SmolLM2-135M-Instruct"
BLOCK, THRESHOLD = 32, 64
KV_LEASE_S, LEASE_TTL_S = 15, 6  # on a busy machine a handoff takes seconds
CORES = [str(core) for core in sorted(psutil.Process().cpu_affinity())]
SENTENCE = "The lighthouse keeper opened the old door, looked over the grey sea and thought of the boat that was late. "


def pool(role: str, model: Path) -> dict[str, Any]:
    return {
        "role": role,
        "model": MODEL,
        "engine": "vllm",
        "path": str(model),
        "chat_template": str(TEMPLATE),
        "block_size": BLOCK,
        "max_model_len": 2048,
        "max_running": 8,
        "disagg": {"remote_tokens": THRESHOLD, "remote_wait_s": 60.0},
        "args": {
            "kv_cache_memory_bytes": 2**28,
            "kv_transfer_config": {"kv_connector_extra_config": {"kv_lease_duration": KV_LEASE_S}},
        },
    }


@pytest.fixture(scope="module")
def fleet(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack with a prefill worker and a decode worker.

    The tests that kill a worker, and put another in its place, are at the end of this file.
    """
    path = tmp_path_factory.mktemp("vllm-disagg")
    model = shallow_model()
    env = {
        "XYLEM_DEPLOYMENT": path.name,
        "XYLEM_HEARTBEAT_S": "0.2",
        "XYLEM_LEASE_TTL_S": str(LEASE_TTL_S),
        "XYLEM_PATIENCE_S": "240",  # loading another engine takes a while
    }
    with stack(valkey_url, path, {PREFILL: pool("prefill", model), DECODE: pool("decode", model)}, **env) as s:
        s.api()
        s.worker(PREFILL, "prefill", VLLM_CPU_OMP_THREADS_BIND=CORES[0])
        s.worker(DECODE, "decode", VLLM_CPU_OMP_THREADS_BIND=CORES[-1])
        s.wait_ready(1, MODEL, timeout_s=240)
        wait_until(lambda: leases(s, PREFILL), "the prefill worker is there", 240)
        yield s


@pytest.fixture(scope="module")
def words() -> list[int]:
    return load_tokenizer(WEIGHTS).encode(SENTENCE * 80, add_special_tokens=False)


@dataclass
class Choice:
    text: str = ""
    finish: str | None = None
    tokens: list[str] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass
class Answer:
    id: str
    choices: dict[int, Choice]


def ask(s: Stack, **wanted: Any) -> Answer:
    """The answer at temperature 0, with whatever else is wanted; streamed or not it is the same."""
    own = {key: wanted.pop(key) for key in ("prompt", "messages", "stream") if key in wanted}
    body = {"temperature": 0, "max_tokens": 16, "ignore_eos": True} | wanted
    with client_of(s.url) as c:
        create: Any = c.chat.completions.create if "messages" in own else c.completions.create
        came = create(model=MODEL, **own, extra_body=body)
        parts = list(came) if own.get("stream") else [came]
    answer = Answer(parts[0].id, {})
    for part in parts:
        for choice in part.choices:
            _add(answer.choices.setdefault(choice.index, Choice()), choice)
    return answer


def _add(to: Choice, part: Any) -> None:
    message = getattr(part, "message", None) or getattr(part, "delta", None)
    to.text += part.text if message is None else message.content or ""
    for call in (message is not None and message.tool_calls) or ():
        to.text += f"{call.function.name or ''}{call.function.arguments or ''}"
    to.finish = part.finish_reason or to.finish
    if part.logprobs is not None and message is None:
        to.tokens += part.logprobs.tokens
        to.logprobs += part.logprobs.token_logprobs
    elif part.logprobs is not None:
        to.tokens += [entry.token for entry in part.logprobs.content]
        to.logprobs += [entry.logprob for entry in part.logprobs.content]


def whole(s: Stack, **wanted: Any) -> Answer:
    """The answer of the decode worker alone, with none of the KV that it has already."""
    with together(s, PREFILL):
        answer = ask(s, cache_salt="whole", **wanted)
    assert len(timeline(s, answer.id)["workers"]) == 1
    return answer


def assert_same(one: Answer, other: Answer) -> None:
    """Token by token. Logprobs may differ by what another order of additions makes of them."""
    assert one.choices.keys() == other.choices.keys()
    for index, choice in one.choices.items():
        same = other.choices[index]
        assert (choice.text, choice.finish, choice.tokens) == (same.text, same.finish, same.tokens)
        assert choice.logprobs == pytest.approx(same.logprobs, abs=1e-3)


class Settled(NamedTuple):
    worker: str
    prefill_tokens: float
    pulled_tokens: float


def settled(s: Stack) -> Settled:
    """The decode worker's counts, once all is free by leases that are younger than this call."""
    redis, began = s.redis, time.monotonic()

    def free() -> bool:
        keys = [f"{s.deployment}:worker:{lease.worker.id}" for p in (PREFILL, DECODE) for lease in leases(s, p)]
        now = time.monotonic()
        ages = [LEASE_TTL_S - redis.pttl(key) / 1000 for key in keys]
        return all(now - age > began for age in ages) and all_free(s, PREFILL, DECODE)

    wait_until(free, "all KV blocks are free", 2 * KV_LEASE_S + 10)
    (lease,) = leases(s, DECODE)
    return Settled(lease.worker.id, metric(s, DECODE, "prefill_tokens"), metric(s, DECODE, "pulled_tokens"))


def assert_nothing_held(s: Stack, workers: int = 2) -> None:
    """vLLM refuses to clear a cache of which a block is held by anybody."""

    def told() -> dict[str, Any] | None:
        """None while an engine is in a step: of a long prompt that may take longer than the API waits."""
        reply: dict[str, Any] = httpx.post(f"{s.url}/admin/clear_kv_blocks", timeout=30).json()
        return None if "no answer" in reply["refused"].values() else reply

    answer = wait_until(told, "the engines answer", 60)
    assert (len(answer["cleared"]), answer["refused"]) == (workers, {})


def kill(s: Stack, name: str) -> None:
    """The worker and all that it has started."""
    children = worker_process(s, name).children(recursive=True)
    assert children
    for process in (worker_process(s, name), *children):
        process.kill()
    s.names[name].wait(10)
    assert not psutil.wait_procs(children, 10)[1]


def lent(s: Stack) -> int:
    return sum(lease.load.lent_blocks for lease in leases(s, PREFILL))


@contextmanager
def client(s: Stack, **wanted: Any) -> Iterator[HTTPConnection]:
    """One that has asked, and leaves at the end without having read anything."""
    connection = HTTPConnection("127.0.0.1", s.port, timeout=200)
    body = {"model": MODEL, "temperature": 0, "max_tokens": 64, "ignore_eos": True} | wanted
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    yield connection
    connection.close()


LONG_CHAT = [
    {"role": "system", "content": "You are a keeper of lighthouses. " + SENTENCE * 6},
    {"role": "user", "content": "What is the capital of France?"},
]
VARIED = {"max_tokens": 32, "temperature": 1.5, "seed": 3}  # of few layers the likeliest words are always the same
DAYS = {"type": "object", "properties": {"days": {"type": "array", "items": {"type": "integer"}, "maxItems": 9}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "days", "schema": DAYS | {"required": ["days"]}}}
FORCED = {"tools": [{"type": "function", "function": {"name": "look", "parameters": DAYS}}], "tool_choice": "required"}
SHORT, LONG = "computed where it is decoded", "computed apart"
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {  # what happens, how many words of the text, what is asked
    "ten": (SHORT, 10, {"logprobs": 2}),
    "one-less-than-the-threshold": (SHORT, THRESHOLD - 1, {"logprobs": 1}),
    "a-short-chat": (SHORT, 0, {"messages": LONG_CHAT[1:], "ignore_eos": False, "stream": True}),
    "the-threshold-two-blocks": (LONG, THRESHOLD, {"logprobs": 1}),
    "two-blocks-and-one": (LONG, THRESHOLD + 1, {"logprobs": 1}),
    "eight-blocks": (LONG, 8 * BLOCK, {"logprobs": 5}),
    "eight-blocks-but-one": (LONG, 8 * BLOCK - 1, {"stream": True, "logprobs": 0}),
    "long": (LONG, 500, {"max_tokens": 32, "logprobs": 1}),
    "thirty-two-blocks-streamed": (LONG, 32 * BLOCK, {"stream": True, "logprobs": 1}),
    "two-choices": (LONG, 200, {"n": 2, "temperature": 1.0, "top_k": 1, "logprobs": 1}),
    "two-choices-streamed": (LONG, 4 * BLOCK, {"n": 2, "temperature": 1.0, "top_k": 1, "stream": True}),
    "stop": (LONG, 150, {"stop": [], "logprobs": 1}),
    "stop-streamed": (LONG, 170, {"stop": ["nobody says"], "stream": True}),
    "stop-included": (LONG, 190, {"stop": [], "include_stop_str_in_output": True}),
    "penalties": (LONG, 210, {"frequency_penalty": 1.5, "repetition_penalty": 1.2, "logprobs": 1}),
    "a-long-chat": (LONG, 0, {"messages": LONG_CHAT, "logprobs": True, "top_logprobs": 2, "ignore_eos": False}),
    "a-schema": (LONG, 0, {"messages": LONG_CHAT, "response_format": SCHEMA, "ignore_eos": False}),
    "a-forced-tool": (LONG, 0, {"messages": LONG_CHAT, **FORCED, "ignore_eos": False, "max_tokens": 40}),
    "a-forced-tool-streamed": (
        LONG,
        0,
        {"messages": LONG_CHAT, **FORCED, "ignore_eos": False, "max_tokens": 40, "stream": True},
    ),
    "a-long-chat-streamed": (LONG, 0, {"messages": LONG_CHAT, "stream": True, "logprobs": True, "max_tokens": 24}),
}


@pytest.mark.parametrize("name", CASES)
def test_an_answer_is_the_one_of_a_single_worker_and_its_prompt_was_computed_once(
    fleet: Stack, words: list[int], name: str
) -> None:
    """Token by token; by the engines' own counters the one that decodes computed nothing, and no KV stays held."""
    happens, length, options = CASES[name]
    prompt = {"prompt": [1000 + length, *words[: length - 1]]} if length else {}
    if "stop" in options:
        text = whole(fleet, **prompt, **VARIED).choices[0].text
        options = VARIED | options | {"stop": [*options["stop"], text[len(text) // 2 :][:4]]}
    one = whole(fleet, **prompt, **options)
    before = settled(fleet)
    answer = ask(fleet, cache_salt=name, **prompt, **options)
    record, after = timeline(fleet, answer.id), settled(fleet)

    assert_same(answer, one)
    if "stop" in options:
        assert {choice.finish for choice in answer.choices.values()} == {"stop"}
    for form, begins in (("response_format", "{"), ("tool_choice", "look{")):
        assert form not in options or all(c.text.startswith(begins) for c in answer.choices.values())
    computed_tokens = after.prefill_tokens - before.prefill_tokens
    pulled_tokens = after.pulled_tokens - before.pulled_tokens
    if happens == SHORT:
        assert (len(record["workers"]), computed_tokens, pulled_tokens) == (1, record["prompt_tokens"], 0)
    else:
        (prefill,), others = leases(fleet, PREFILL), options.get("n", 1) - 1
        assert [part["worker"] for part in record["workers"]] == [prefill.worker.id, after.worker]
        assert pulled_tokens == record["prompt_tokens"]
        assert computed_tokens <= 1 + others * BLOCK, "another choice finds whole blocks in the cache"
    assert record["attempts"] == 1


def test_prompts_with_one_prefix_are_pulled_once_and_answered_as_by_one_worker(fleet: Stack, words: list[int]) -> None:
    """The second prompt pulls only what the decode worker lacks.

    The third lacks less than the threshold, and stays at the decode worker.
    """
    prefix = [2000, *words[: 10 * BLOCK - 1]]
    prompts = [[*prefix, *words[at : at + length]] for at, length in ((400, 100), (500, 100), (600, 20))]
    alone = [whole(fleet, prompt=prompt, logprobs=1) for prompt in prompts]
    snapshots = [settled(fleet)]
    answers = []
    for prompt in prompts:
        answers.append(ask(fleet, cache_salt="prefix", prompt=prompt, logprobs=1))
        snapshots.append(settled(fleet))
        have = -(-len(prefix) // BLOCK)
        wait_until(lambda: indexed_blocks(fleet, DECODE) >= have, "routing knows of the prefix")  # noqa: B023 (called at once)
    for answer, one in zip(answers, alone, strict=True):
        assert_same(answer, one)
    pairs = list(pairwise(snapshots))
    pulled_counts = [after.pulled_tokens - before.pulled_tokens for before, after in pairs]
    computed_counts = [after.prefill_tokens - before.prefill_tokens for before, after in pairs]
    assert pulled_counts == [420, 100, 0]
    assert (max(computed_counts[:2]) <= 1, computed_counts[2]) == (True, 20)
    assert [len(timeline(fleet, answer.id)["workers"]) for answer in answers] == [2, 2, 1]
    assert_nothing_held(fleet)


def test_each_engine_computes_on_its_own_core_and_rests_when_it_has_nothing_to_do(fleet: Stack) -> None:
    """vLLM's connector would move both to the last core, and NIXL's progress thread never sleep."""
    settled(fleet)
    for name, core in (("prefill", CORES[0]), ("decode", CORES[-1])):
        engine = max(worker_process(fleet, name).children(recursive=True), key=lambda p: p.memory_info().rss)
        assert engine.cpu_affinity() == [int(core)]
        assert engine.cpu_percent(interval=1.0) < 50


def test_a_client_that_leaves_during_the_prefill_leaves_nothing_behind(fleet: Stack, words: list[int]) -> None:
    before = settled(fleet)
    with client(fleet, prompt=[3000, *words[:1900]]):
        wait_until(lambda: any(p.load.running + p.load.waiting for p in leases(fleet, PREFILL)), "it computes")
    after = settled(fleet)
    assert (after.prefill_tokens, after.pulled_tokens) == (before.prefill_tokens, before.pulled_tokens)
    assert_nothing_held(fleet)


def test_a_client_that_leaves_between_the_tasks_leaves_nothing_behind(fleet: Stack, words: list[int]) -> None:
    """The decode worker finds nobody to answer, and gives the KV up."""
    before, log_length = settled(fleet), len(fleet.log("prefill"))
    with standing_still(fleet.names["decode"].pid):
        with client(fleet, prompt=[3001, *words[:300]]):
            wait_until(lambda: lent(fleet), "the prompt's KV is lent")
        records = f"{fleet.deployment}:request:*"
        wait_until(lambda: not fleet.redis.keys(records), "nobody waits for it any more")
    after = settled(fleet)
    assert (after.prefill_tokens, after.pulled_tokens) == (before.prefill_tokens, before.pulled_tokens)
    assert_nothing_held(fleet)
    assert "expired" not in fleet.log("prefill")[log_length:], "it did not wait for the lease's end"


def test_when_the_decode_worker_dies_the_next_one_goes_on(fleet: Stack, words: list[int]) -> None:
    """The next worker takes the answer in progress and the request that had not begun.

    KV that nobody fetches is free when its lease ends.
    """
    prompt = [4000, *words[:300]]
    one = whole(fleet, prompt=prompt, logprobs=1)
    with ThreadPoolExecutor() as threads, client(fleet, prompt=[4001, *words[:200]], max_tokens=200, stream=True) as c:
        answering = c.getresponse()
        while not answering.readline().startswith(b"data: "):
            pass
        wait_until(lambda: leases(fleet, DECODE)[0].load.running, "it decodes")
        with standing_still(fleet.names["decode"].pid):
            other = [4002, *words[:400]]  # longer, so that what is lent may not be the first one's
            waiting = threads.submit(ask, fleet, prompt=other)
            wait_until(lambda: lent(fleet) >= len(other) // BLOCK or waiting.done(), "the other prompt's KV is lent")
            assert not waiting.done(), waiting.result()
            kill(fleet, "decode")
        wait_until(lambda: not leases(fleet, DECODE), "it is known to be gone")
        fleet.worker(DECODE, "second-decode", VLLM_CPU_OMP_THREADS_BIND=CORES[-1])
        fleet.wait_ready(1, MODEL, timeout_s=240)
        events = [line for line in answering.read().decode().splitlines() if line.startswith("data: ")]
        assert (events[-1], [line for line in events if '"error"' in line]) == ("data: [DONE]", [])
        assert waiting.result(200).choices[0].finish == "length"

    wait_until(lambda: all_free(fleet, PREFILL), "the prefill worker's blocks are free", 3 * KV_LEASE_S)
    assert_nothing_held(fleet)
    before = settled(fleet)
    answer = ask(fleet, prompt=prompt, logprobs=1)
    assert_same(answer, one)
    record, after = timeline(fleet, answer.id), settled(fleet)
    assert (len(record["workers"]), after.pulled_tokens - before.pulled_tokens) == (2, len(prompt))
    assert after.prefill_tokens - before.prefill_tokens <= 1


def test_a_prefill_worker_that_dies_with_the_kv_costs_time_and_not_the_answer(fleet: Stack, words: list[int]) -> None:
    """The decode worker stands still, so that its holder dies before the KV is pulled. Nobody follows it."""
    prompt = [5000, *words[:300]]
    one = whole(fleet, prompt=prompt, logprobs=1)
    before = settled(fleet)
    with ThreadPoolExecutor() as threads:
        with standing_still(fleet.names["second-decode"].pid):
            future = threads.submit(ask, fleet, prompt=prompt, logprobs=1)
            wait_until(lambda: lent(fleet), "the prompt's KV is lent")
            kill(fleet, "prefill")
        answer = future.result(60)
    assert_same(answer, one)
    record = timeline(fleet, answer.id)
    assert record["workers"][-1].get("handoff_refused") or record["attempts"] == 2
    wait_until(lambda: not leases(fleet, PREFILL), "it is known to be gone")
    after = settled(fleet)
    assert after.prefill_tokens - before.prefill_tokens == len(prompt)
    assert after.pulled_tokens == before.pulled_tokens
    assert len(timeline(fleet, ask(fleet, prompt=[5001, *words[:300]]).id)["workers"]) == 1
    assert_nothing_held(fleet, 1)


def test_a_worker_that_ends_leaves_no_process(fleet: Stack) -> None:
    """vLLM's engine is a process of its own; SIGTERM ends both. Last, since it ends the last worker."""
    worker = fleet.names["second-decode"]
    below = psutil.Process(worker.pid).children(recursive=True)
    assert below
    worker.terminate()
    assert worker.wait(60) == 0
    wait_until(  # Python's own resource tracker ends a moment after those whose resources it tracks
        lambda: not [p for p in below if p.is_running() and p.status() != psutil.STATUS_ZOMBIE], "no process is left"
    )
