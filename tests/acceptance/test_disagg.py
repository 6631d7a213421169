"""Prefill and decode on workers of their own: real processes, the mock engine, real NIXL, the official client."""

import json
import os
import select
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import psutil
import pytest
from celery import Celery

from app.messages.lease import Lease
from tests.serving import client_of, serving, standing_still
from tests.stack import Stack, indexed_blocks, leases, metric, timeline, wait_until
from tests.stack import all_free as stack_is_free

PREFILL, DECODE = "prefill-pool-a", "decode-pool-a"
LONG = "the quick brown fox jumps over the lazy dog " * 60


def pool(role: str, **args: Any) -> dict[str, Any]:
    """Hands prompts of 64 tokens and more over, by real NIXL."""
    handoff = {"nixl": True, "block_bytes": 65536, "lease_s": 8.0, "timeout_s": 5.0} | args.pop("handoff", {})
    own = {k: args.pop(k) for k in ("model", "block_size") if k in args}
    return {
        "role": role,
        "model": "mock",
        "engine": "mock",
        "max_model_len": 4096,
        "disagg": {"remote_tokens": 64, "remote_wait_s": 60.0},
        "args": {"step_ms": 5.0, "total_blocks": 1024, "handoff": handoff, **args},
        **own,
    }


SLOW = {"prefill_tokens_per_s": 800.0}  # a prompt of `LONG` takes it a second
AT_ONCE: dict[str, Any] = {"model": "rooms", "handoff": {"shape": "at_once"}}
REFUSED = {  # how its KV differs, and what the decode worker says of it
    "layout": ({"handoff": {"layout": "other"}}, "layout"),
    "block-bytes": ({"handoff": {"block_bytes": 32768}}, "bytes"),
    "lease": ({"handoff": {"lease_s": 0.001}}, "has expired"),
    "block-size": ({"block_size": 16}, "block"),
}
POOLS = {
    PREFILL: pool("prefill"),
    "prefill-slow": pool("prefill", **SLOW, handoff={"lease_s": 30.0}),
    "prefill-half": pool("prefill"),
    **{f"prefill-{name}": pool("prefill", **args) for name, (args, _) in REFUSED.items()},
    DECODE: pool("decode"),
    "prefill-rooms": pool("prefill", **SLOW, **AT_ONCE),
    "decode-rooms": pool("decode", **AT_ONCE),
}


@pytest.fixture(scope="module")
def fleet(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """An API replica. Each test says which workers it wants beside it."""
    path = tmp_path_factory.mktemp("disagg")
    # Who stands still for some seconds is not taken for dead: who dies is known at once.
    env = {"XYLEM_LEASE_TTL_S": "30", "XYLEM_HEARTBEAT_S": "0.2", "XYLEM_DEPLOYMENT": path.name}
    with serving(valkey_url, path, POOLS, {}, **env) as s:
        yield s


def have(
    s: Stack, prefill: str = PREFILL, decode: str = DECODE, *, prefillers: int = 1, decoders: int = 1, **of_prefill: str
) -> None:
    """Starts and kills workers until there are these and no others; those that fit already stay.

    `of_prefill` is the environment of a new prefill worker.
    """
    counts = Counter({prefill: prefillers, decode: decoders})
    missing = counts.copy()
    for lease in leases(s):
        if missing[lease.worker.pool]:
            missing[lease.worker.pool] -= 1
        else:
            process_of(lease).kill()
    for name in missing.elements():
        s.worker(name, name, **of_prefill if name == prefill else {})
    wait_until(lambda: Counter(lease.worker.pool for lease in leases(s)) == counts, f"{counts}", 60)
    s.wait_ready(decoders, str(POOLS[decode]["model"]))


@pytest.fixture
def pair(fleet: Stack) -> Stack:
    have(fleet)
    wait_until(lambda: all_free(fleet), "nothing of the test before runs")
    return fleet


def process_of(lease: Lease) -> psutil.Process:
    return psutil.Process(lease.worker.pid)


def kill(lease: Lease) -> None:
    """Returns when nothing can read the process's memory any more, as a signal alone does not assure."""
    with os.fdopen(os.pidfd_open(lease.worker.pid)) as process:
        process_of(lease).kill()
        assert select.select([process], [], [], 10)[0]


def lender(s: Stack) -> Lease:
    """The prefill worker that has lent the KV."""
    (lease,) = wait_until(lambda: [p for p in leases(s, PREFILL) if p.load.lent_blocks], "it has lent the KV")
    assert isinstance(lease, Lease)
    return lease


def all_free(s: Stack) -> bool:
    return stack_is_free(s, *POOLS)


@contextmanager
def together(s: Stack, prefill: str = PREFILL) -> Iterator[None]:
    """Its threshold raised at run time, everything is computed where it is decoded."""
    limits = f"{s.url}/admin/pools/{prefill}/limits"
    httpx.patch(limits, json={"remote_tokens": 100_000}, timeout=30).raise_for_status()
    try:
        yield
    finally:
        httpx.patch(limits, json={"remote_tokens": None}, timeout=30).raise_for_status()


def ask(s: Stack, prompt: str = LONG, **wanted: Any) -> Any:
    usual: dict[str, Any] = {"model": "mock", "max_tokens": 12, "temperature": 0, "extra_body": {"ignore_eos": True}}
    with client_of(s.url) as c:
        return c.completions.create(prompt=prompt, **usual | wanted)


def whole(s: Stack, prompt: str = LONG, **wanted: Any) -> Any:
    """The answer that uses none of the KV that is there already."""
    return ask(s, prompt, extra_body={"ignore_eos": True, "cache_salt": "other"}, **wanted)


def seen(s: Stack, answer: Any) -> dict[str, Any]:
    return timeline(s, answer.id)


def test_a_long_prompt_is_computed_by_one_worker_and_answered_by_the_other(pair: Stack) -> None:
    answer = ask(pair, "one " + LONG)
    (prefill,), (decode,) = leases(pair, PREFILL), leases(pair, DECODE)
    record = seen(pair, answer)
    assert [w["worker"] for w in record["workers"]] == [prefill.worker.id, decode.worker.id]
    assert record["workers"][1]["pulled"]["tokens"] == record["prompt_tokens"]
    assert record["workers"][1]["pulled"]["size"] > 0
    assert {"placement", "queue", "prefill", "hop", "transfer", "resume", "decode"} == set(record["stages"])
    wait_until(lambda: all_free(pair), "all is free again")
    prompt = record["prompt_tokens"]
    wait_until(
        lambda: metric(pair, DECODE, "pulled_tokens") == prompt, "its own counter says that it pulled the prompt"
    )
    assert metric(pair, DECODE, "prefill_tokens") <= 1, "the decode engine computed no prompt"


def test_a_short_prompt_stays_where_its_answer_is(pair: Stack) -> None:
    assert len(seen(pair, ask(pair, "short"))["workers"]) == 1


def test_a_prompt_that_is_mostly_cached_where_it_is_decoded_stays_there(pair: Stack) -> None:
    """The threshold is on what would have to be computed."""
    before = indexed_blocks(pair, DECODE)
    assert len(seen(pair, ask(pair, "twice " + LONG))["workers"]) == 2
    wait_until(lambda: indexed_blocks(pair, DECODE) > before, "the index has its blocks")
    again = ask(pair, "twice " + LONG)
    assert len(seen(pair, again)["workers"]) == 1
    assert again.usage.prompt_tokens_details.cached_tokens > 0


def test_the_first_token_comes_before_the_prompt_is_handed_over(pair: Stack) -> None:
    """The token is there while the decode worker stands still."""
    with client_of(pair.url) as c:
        with standing_still(leases(pair, DECODE)[0].worker.pid):
            stream = c.completions.create(
                model="mock", prompt="first " + LONG, max_tokens=8, temperature=0, stream=True
            )
            first = next(chunk for chunk in stream if chunk.choices and chunk.choices[0].text)
        last = list(stream)[-1]
    assert last.choices[0].finish_reason
    assert len(timeline(pair, first.id)["workers"]) == 2


WANTED: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 7},
    {"logprobs": 3},
    {"n": 3, "seed": 3, "temperature": 1.0},
    {"frequency_penalty": 1.5, "presence_penalty": 0.5},
    {"max_tokens": 1},
    {"max_tokens": 2},
    {"echo": True, "logprobs": 1},
]


@pytest.mark.parametrize("wanted", WANTED, ids=lambda w: ",".join(w) or "plain")
def test_answers_are_those_of_one_worker(pair: Stack, wanted: dict[str, Any]) -> None:
    """Its threshold raised at run time, the same fleet answers everything on the decode worker."""
    prompt = f"same {sorted(wanted)} " + LONG
    apart = ask(pair, prompt, **wanted)
    with together(pair):
        one = whole(pair, prompt, **wanted)
    assert len(seen(pair, one)["workers"]) == 1
    if "echo" not in wanted and wanted.get("max_tokens") != 1:
        assert len(seen(pair, apart)["workers"]) == 2
    assert [c.text for c in apart.choices] == [c.text for c in one.choices]
    assert [c.finish_reason for c in apart.choices] == [c.finish_reason for c in one.choices]
    assert [c.logprobs for c in apart.choices] == [c.logprobs for c in one.choices]
    assert apart.usage.completion_tokens == one.usage.completion_tokens
    wait_until(lambda: all_free(pair), "all is free again")


def test_a_stop_string_ends_an_answer_at_its_first_token(pair: Stack) -> None:
    """Nothing is handed over then, and nothing stays behind."""
    first = ask(pair, "stops " + LONG, max_tokens=1).choices[0].text
    short_answer = ask(pair, "stops " + LONG, stop=[first], extra_body={"cache_salt": "x"})
    assert (short_answer.choices[0].text, short_answer.choices[0].finish_reason) == ("", "stop")
    assert len(seen(pair, short_answer)["workers"]) == 1
    wait_until(lambda: all_free(pair), "all is free again")


def test_its_thresholds_are_limits_of_a_prefill_pool(pair: Stack) -> None:
    """Elsewhere they would have no effect, so that they are refused there."""
    limits = f"{pair.url}/admin/pools/%s/limits"
    assert httpx.get(limits % PREFILL).json()["remote_tokens"] == 64
    assert "remote_tokens" not in httpx.get(limits % DECODE).json()
    answer = httpx.patch(limits % DECODE, json={"remote_tokens": 1})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "remote_tokens")


def test_the_metrics_tell_where_prompts_were_computed_and_how_much_was_moved(pair: Stack) -> None:
    ask(pair, "metrics " + LONG)
    text = httpx.get(f"{pair.url}/metrics").text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values['xylem_prefills_total{model="mock",where="apart"}']) >= 1
    assert float(values['xylem_pulled_bytes_total{model="mock"}']) > 0
    assert float(values['xylem_stage_seconds_count{model="mock",stage="hop"}']) >= 1


def test_a_client_that_leaves_leaves_nothing_behind(pair: Stack) -> None:
    """Whenever it goes: before, during or after the handoff."""
    for i, after in enumerate((0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15)):
        with httpx.Client(timeout=httpx.Timeout(10, read=after + 0.001)) as c, pytest.raises(httpx.ReadTimeout):
            c.post(
                f"{pair.url}/v1/completions", json={"model": "mock", "prompt": f"leave {i} {LONG}", "max_tokens": 200}
            )
    wait_until(lambda: all_free(pair), "all is free again")


def test_task_events_and_logs_tell_of_the_handoff_and_of_neither_prompt_nor_answer(pair: Stack) -> None:
    """Celery's chain, and Flower, which shows it, have only the place of the KV."""
    watching = Celery("watching", broker=pair.redis_url)
    watching.conf.broker_transport_options = {"global_keyprefix": f"{pair.deployment}:"}
    events: list[dict[str, Any]] = []

    def received(event: dict[str, Any]) -> None:
        if event["kwargs"] != "{}":  # those of the test before, which named no request, come up to 250 ms late
            events.append(event)
        receiver.should_stop = len(events) == 2

    with watching.connection_for_read() as connection, ThreadPoolExecutor(1) as threads:
        receiver = watching.events.Receiver(connection, handlers={"task-received": received})
        capturing = threads.submit(receiver.capture, limit=None, timeout=60, wakeup=False)
        bound = f"{pair.deployment}:_kombu.binding.celeryev"
        wait_until(lambda: pair.redis.scard(bound), "its queue is bound")
        answer = ask(pair, "zanzibar " + LONG, extra_headers={"x-request-id": "mine"})
        capturing.result()
    events_json = json.dumps(events)
    assert {e["name"] for e in events} == {"app.tasks.prefill.prefill", "app.tasks.decode.decode"}
    assert "holder" in events_json
    assert [e["kwargs"] for e in events] == ["{'x_request_id': 'mine'}"] * 2
    logs = "".join(pair.log(name) for name in ("api", PREFILL, DECODE))
    for secret in ("zanzibar", answer.choices[0].text[:12]):
        assert secret not in events_json + logs


def test_what_the_prefill_worker_had_cached_counts_as_cached(pair: Stack) -> None:
    """Nobody computed it for this request, though the decode worker pulled it."""
    prompt = "known " + LONG
    assert ask(pair, prompt).usage.prompt_tokens_details.cached_tokens == 0
    wait_until(lambda: all_free(pair), "all is free again")
    assert len(httpx.post(f"{pair.url}/admin/pools/{DECODE}/clear_kv_blocks", timeout=30).json()["cleared"]) == 1
    assert indexed_blocks(pair, DECODE) == 0
    again = ask(pair, prompt)
    assert len(seen(pair, again)["workers"]) == 2
    assert again.usage.prompt_tokens_details.cached_tokens > 1000


def test_a_prefill_worker_that_dies_with_the_kv_is_replaced_by_a_local_prefill(pair: Stack) -> None:
    """The decode worker stands still, so that the handoff waits in its queue while its holder dies."""
    with ThreadPoolExecutor() as threads:
        with together(pair):  # so that what is lent is the next prompt's
            one = whole(pair).choices[0].text
        with standing_still(leases(pair, DECODE)[0].worker.pid):
            answer = threads.submit(ask, pair)
            kill(lender(pair))
        record = seen(pair, answer.result())
        assert record["workers"][-1].get("handoff_refused") or record["attempts"] == 2
        assert answer.result().choices[0].text == one
        wait_until(lambda: all_free(pair), "all is free again")


def test_a_transfer_that_takes_too_long_is_given_up(fleet: Stack) -> None:
    """The holder stands still when the decode engine first talks to it."""
    have(fleet, prefillers=0)
    have(fleet)
    with ThreadPoolExecutor() as threads, ExitStack() as until:
        with standing_still(leases(fleet, DECODE)[0].worker.pid):
            answer = threads.submit(ask, fleet, "slowly " + LONG)
            until.enter_context(standing_still(lender(fleet).worker.pid))
        assert answer.result().usage.completion_tokens == 12
        record = seen(fleet, answer.result())
        assert record["workers"][-1].get("handoff_refused") or record["attempts"] >= 2


def test_when_a_decode_worker_dies_decoding_the_next_one_goes_on(pair: Stack) -> None:
    """The answer waits until there is one."""
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(ask, pair, max_tokens=1000)
        (busy,) = wait_until(lambda: [d for d in leases(pair, DECODE) if d.load.running], "it decodes")
        process_of(busy).kill()
        wait_until(lambda: not leases(pair, DECODE), "it is known to be gone")
        have(pair)
        assert answer.result().usage.completion_tokens == 1000
        assert seen(pair, answer.result())["attempts"] == 2
        wait_until(lambda: leases(pair, PREFILL)[0].load.used_blocks == 0, "the prefill worker's blocks are free")


def test_several_prefill_workers_hand_over_to_several_that_decode(fleet: Stack) -> None:
    """Each to each, and every answer is that of its own prompt."""
    have(fleet, prefillers=2, decoders=2)
    wait_until(lambda: all_free(fleet), "all is free")
    everyway = {(p.worker.id, d.worker.id) for p in leases(fleet, PREFILL) for d in leases(fleet, DECODE)}
    tokens_before = metric(fleet, DECODE, "prefill_tokens")
    with ThreadPoolExecutor(8) as threads:
        prompts = [f"several {i} {LONG}" for i in range(20)]
        apart: list[Any] = []
        ways: set[tuple[str, ...]] = set()
        while ways != everyway:  # a few more may be wanted until chance has taken every way
            apart += threads.map(lambda prompt: ask(fleet, prompt), prompts[len(apart) :])
            ways = {tuple(part["worker"] for part in seen(fleet, answer)["workers"]) for answer in apart}
            assert ways <= everyway
            assert len(apart) < 100, f"chance takes only {ways}"
            prompts += [] if ways == everyway else [f"several {len(prompts)} {LONG}"]
        wait_until(lambda: all_free(fleet), "all is free again")
        assert metric(fleet, DECODE, "prefill_tokens") - tokens_before <= len(prompts)
        with together(fleet):
            one = list(threads.map(lambda prompt: whole(fleet, prompt), prompts))
    assert [a.choices[0].text for a in apart] == [w.choices[0].text for w in one]
    assert len({a.choices[0].text for a in apart}) > 15, "prompts have answers of their own"


def reserved(s: Stack) -> Lease | None:
    """The decode worker that is to answer something."""
    redis = s.redis
    return next((d for d in leases(s, DECODE) if redis.hlen(f"{s.deployment}:reservations:{d.worker.id}")), None)


def test_a_decode_worker_that_dies_before_the_hop_is_replaced_and_the_prompt_not_computed_again(fleet: Stack) -> None:
    have(fleet, "prefill-slow", decoders=2)
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(ask, fleet, "hop " + LONG * 3)  # three seconds, and no worker has any of it
        busy = wait_until(lambda: reserved(fleet), "it is reserved")
        process_of(busy).kill()
        record = seen(fleet, answer.result())
        assert record["attempts"] == 2
        assert [w["worker"] != busy.worker.id for w in record["workers"]] == [True, True]
        assert record["workers"][1]["pulled"]["tokens"] == record["prompt_tokens"], (
            "from the handoff of the first attempt"
        )
        wait_until(lambda: all_free(fleet), "all is free again")


def test_a_draining_decode_worker_gives_the_handoff_to_another(fleet: Stack) -> None:
    have(fleet, "prefill-slow", decoders=2)
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(ask, fleet, "drain " + LONG * 3)
        busy = wait_until(lambda: reserved(fleet), "it is reserved")
        process_of(busy).terminate()
        record = seen(fleet, answer.result())
        assert record["workers"][-1]["worker"] != busy.worker.id
        wait_until(lambda: len(leases(fleet, DECODE)) == 1 and all_free(fleet), "all is free again")


def test_a_prefill_worker_that_dies_while_computing_costs_time_and_no_request(fleet: Stack) -> None:
    have(fleet, "prefill-slow")
    prompt = "alone " + LONG * 3
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(ask, fleet, prompt)
        (busy,) = wait_until(lambda: [p for p in leases(fleet, "prefill-slow") if p.load.running], "it computes")
        process_of(busy).kill()
        record = seen(fleet, answer.result())
        assert record["attempts"] == 2
        assert len(record["workers"]) == 1
        assert answer.result().choices[0].text == whole(fleet, prompt).choices[0].text
        wait_until(lambda: all_free(fleet), "all is free again")


@pytest.mark.parametrize("name", REFUSED)
def test_a_handoff_that_is_refused_is_a_local_prefill(fleet: Stack, name: str) -> None:
    """Another layout, another block, a lease that is over."""
    have(fleet, f"prefill-{name}")
    answer = ask(fleet, f"refused {name} {LONG}", extra_headers={"x-request-id": f"mine.{name}"})
    assert [line for line in fleet.log(DECODE).splitlines() if "handoff_refused" in line and f"mine.{name}" in line]
    record = seen(fleet, answer)
    assert REFUSED[name][1] in record["workers"][1]["handoff_refused"]
    assert record["attempts"] == 1
    assert answer.usage.completion_tokens == 12
    wait_until(lambda: all_free(fleet), "all is free again")


def test_a_decode_task_that_cant_be_enqueued_is_placed_anew(fleet: Stack) -> None:
    """Redis says no to the prefill worker, as it would when it is full. The API replica enqueues it then."""
    redis = fleet.redis
    name = fleet.deployment
    keys = [
        f"%R~{name}:*",
        f"~{name}:wire-versions",
        *(
            f"~{name}:{p}*"
            for p in (
                "worker",
                "metrics",
                "seen",
                "pool",
                "prefill",
                "out",
                "reserv",
                "load",
                "request",
                "starting",
                "changed",
                "cache",
            )
        ),
    ]
    keys += [f"~{name}:{p}*" for p in ("commands", "prefix", "_kombu", "unacked", "celery", "reply")]
    redis.acl_setuser("half", enabled=True, passwords=["+x"], commands=["+@all"], keys=[], reset=True)
    redis.execute_command("ACL", "SETUSER", "half", "allchannels", *keys)
    try:
        have(fleet, "prefill-half", XYLEM_REDIS_URL=fleet.redis_url.replace("redis://", "redis://half:x@"))
        record = seen(fleet, ask(fleet, "half " + LONG))
        assert record["attempts"] == 2
        assert record["workers"][1]["pulled"]["tokens"] == record["prompt_tokens"], "with the handoff that came back"
        assert "decode_not_enqueued" in fleet.log("prefill-half")
        wait_until(lambda: all_free(fleet), "all is free again")
    finally:
        have(fleet, "prefill-half", prefillers=0)
        redis.acl_deluser("half")


@pytest.fixture
def rooms(fleet: Stack) -> Stack:
    """Engines that meet while the prompt is being computed."""
    have(fleet, "prefill-rooms", "decode-rooms")
    return fleet


@pytest.mark.parametrize("wanted", [{}, {"temperature": 1.0, "seed": 7}, {"n": 2, "logprobs": 2}], ids=str)
def test_a_handoff_at_once_gives_the_same_answers(rooms: Stack, wanted: dict[str, Any]) -> None:
    prompt = f"room {sorted(wanted)} " + LONG
    apart = ask(rooms, prompt, model="rooms", **wanted)
    record = seen(rooms, apart)
    assert record["workers"][-1]["pulled"]["tokens"] == record["prompt_tokens"]
    with together(rooms, "prefill-rooms"):
        one = whole(rooms, prompt, model="rooms", **wanted)
    assert [c.text for c in apart.choices] == [c.text for c in one.choices]
    wait_until(lambda: all_free(rooms), "all is free again")


def test_at_once_a_prefill_worker_that_dies_is_replaced_by_a_local_prefill(rooms: Stack) -> None:
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(ask, rooms, LONG * 3, model="rooms")
        (busy,) = wait_until(lambda: [p for p in leases(rooms, "prefill-rooms") if p.load.running], "it computes")
        process_of(busy).kill()
        assert answer.result().usage.completion_tokens == 12
        wait_until(lambda: all_free(rooms), "all is free again")
