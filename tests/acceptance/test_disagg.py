"""Prefill and decode on workers of their own: real processes, the mock engine, real NIXL, the official client."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from celery import Celery
from openai import OpenAI
from redis import Redis

from tests.stack import Stack, leases, stack, timeline, wait_until, worker_process
from tests.stack import all_free as stack_is_free

PREFILL, DECODE = "prefill-pool-a", "decode-pool-a"
LONG = "the quick brown fox jumps over the lazy dog " * 60


def pool(role: str, **args: Any) -> dict[str, Any]:
    """Hands prompts of 64 tokens and more over, by real NIXL."""
    handoff = {"nixl": True, "block_bytes": 65536, "lease_s": 4.0, "timeout_s": 2.0} | args.pop("handoff", {})
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


@contextmanager
def fleet(
    url: str,
    path: Path,
    prefill: dict[str, Any],
    decode: dict[str, Any],
    decoders: int = 1,
    prefillers: int = 1,
    **of_prefill: str,
) -> Iterator[Stack]:
    """`of_prefill` is the environment of the first prefill worker."""
    env = {"XYLEM_LEASE_TTL_S": "2", "XYLEM_HEARTBEAT_S": "0.2", "XYLEM_DEPLOYMENT": path.name}
    with stack(url, path, {PREFILL: prefill, DECODE: decode}, **env) as s:
        s.api()
        s.worker(PREFILL, "prefill", **of_prefill)
        for i in range(1, prefillers):
            s.worker(PREFILL, f"prefill{i}")
        for i in range(decoders):
            s.worker(DECODE, f"decode{i}")
        s.wait_ready(decoders)
        wait_until(lambda: len(leases(s, PREFILL)) == prefillers, "the prefill workers are there")
        yield s


@pytest.fixture(scope="module")
def pair(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with fleet(valkey_url, tmp_path_factory.mktemp("disagg"), pool("prefill"), pool("decode")) as s:
        yield s


def all_free(s: Stack) -> bool:
    return stack_is_free(s, PREFILL, DECODE)


def ask(s: Stack, prompt: str = LONG, **wanted: Any) -> Any:
    with OpenAI(base_url=f"{s.url}/v1", api_key="none", max_retries=0, timeout=30) as c:
        return c.completions.create(
            model="mock",
            prompt=prompt,
            **{"max_tokens": 12, "temperature": 0, "extra_body": {"ignore_eos": True}} | wanted,
        )


def seen(s: Stack, answer: Any) -> dict[str, Any]:
    return timeline(s, answer.id)


def test_a_long_prompt_is_computed_by_one_worker_and_answered_by_the_other(pair: Stack) -> None:
    answer = ask(pair, "one " + LONG)
    (prefill,), (decode,) = leases(pair, PREFILL), leases(pair, DECODE)
    told = seen(pair, answer)
    assert [w["worker"] for w in told["workers"]] == [prefill.worker, decode.worker]
    assert told["workers"][1]["pulled"]["tokens"] == told["prompt_tokens"]
    assert told["workers"][1]["pulled"]["size"] > 0
    assert {"placement", "queue", "prefill", "hop", "transfer", "resume", "decode"} == set(told["stages"])
    wait_until(lambda: all_free(pair), "all is free again")
    prompt = told["prompt_tokens"]
    wait_until(
        lambda: leases(pair, DECODE)[0].pulled_tokens == prompt, "its own counter says that it pulled the prompt"
    )
    assert leases(pair, DECODE)[0].prefill_tokens <= 1, "the decode engine computed no prompt"


def test_a_short_prompt_stays_where_its_answer_is(pair: Stack) -> None:
    assert len(seen(pair, ask(pair, "short"))["workers"]) == 1


def test_a_prompt_that_is_mostly_cached_where_it_is_decoded_stays_there(pair: Stack) -> None:
    """The threshold is on what would have to be computed."""
    assert len(seen(pair, ask(pair, "twice " + LONG))["workers"]) == 2
    again = ask(pair, "twice " + LONG)
    assert len(seen(pair, again)["workers"]) == 1
    assert again.usage.prompt_tokens_details.cached_tokens > 0


def test_the_first_token_comes_before_the_prompt_is_handed_over(pair: Stack) -> None:
    """It is there while the decode worker stands still."""
    decode = worker_process(pair, "decode0")
    with OpenAI(base_url=f"{pair.url}/v1", api_key="none", max_retries=0, timeout=30) as c:
        decode.suspend()
        try:
            stream = c.completions.create(
                model="mock", prompt="first " + LONG, max_tokens=8, temperature=0, stream=True
            )
            first = next(chunk for chunk in stream if chunk.choices and chunk.choices[0].text)
        finally:
            decode.resume()
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
    try:
        raised = httpx.patch(f"{pair.url}/admin/pools/{PREFILL}/limits", json={"remote_tokens": 100_000})
        assert raised.status_code == 200
        whole = ask(pair, prompt, extra_body={"ignore_eos": True, "cache_salt": "other"}, **wanted)
        assert len(seen(pair, whole)["workers"]) == 1
    finally:
        httpx.patch(f"{pair.url}/admin/pools/{PREFILL}/limits", json={"remote_tokens": None})
    if "echo" not in wanted and wanted.get("max_tokens") != 1:
        assert len(seen(pair, apart)["workers"]) == 2
    assert [c.text for c in apart.choices] == [c.text for c in whole.choices]
    assert [c.finish_reason for c in apart.choices] == [c.finish_reason for c in whole.choices]
    assert [c.logprobs for c in apart.choices] == [c.logprobs for c in whole.choices]
    assert apart.usage.completion_tokens == whole.usage.completion_tokens
    wait_until(lambda: all_free(pair), "all is free again")


def test_stop_strings_and_eos_end_an_answer_at_its_first_token(pair: Stack) -> None:
    """Then nothing is handed over, and nothing stays behind."""
    first = ask(pair, "stops " + LONG, max_tokens=1).choices[0].text
    stopped = ask(pair, "stops " + LONG, stop=[first], extra_body={"cache_salt": "x"})
    assert (stopped.choices[0].text, stopped.choices[0].finish_reason) == ("", "stop")
    wait_until(lambda: all_free(pair), "all is free again")


def test_its_thresholds_are_limits_of_a_prefill_pool(pair: Stack) -> None:
    """Elsewhere they would have no effect, so that they are refused there."""
    limits = f"{pair.url}/admin/pools/%s/limits"
    assert httpx.get(limits % PREFILL).json()["remote_tokens"] == 64
    assert "remote_tokens" not in httpx.get(limits % DECODE).json()
    refused = httpx.patch(limits % DECODE, json={"remote_tokens": 1})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "remote_tokens")


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
    wait_until(lambda: all_free(pair), "all is free again", 10)


def test_task_events_and_logs_tell_of_the_handoff_and_of_neither_prompt_nor_answer(pair: Stack) -> None:
    """What Celery's chain carries, and Flower shows, says where the KV is."""
    watching = Celery("watching", broker=pair.redis_url)
    watching.conf.broker_transport_options = {"global_keyprefix": f"{pair.deployment}:"}
    events: list[dict[str, Any]] = []

    def received(event: dict[str, Any]) -> None:
        events.append(event)
        receiver.should_stop = len(events) == 2

    with watching.connection_for_read() as connection, ThreadPoolExecutor(1) as threads:
        receiver = watching.events.Receiver(connection, handlers={"task-received": received})
        capturing = threads.submit(receiver.capture, limit=None, timeout=10, wakeup=False)
        time.sleep(0.5)  # until its queue is bound, of which it does not tell
        answer = ask(pair, "zanzibar " + LONG, extra_headers={"x-request-id": "mine"})
        capturing.result()
    told = json.dumps(events)
    assert {e["name"] for e in events} == {"app.tasks.prefill.prefill", "app.tasks.decode.decode"}
    assert "holder" in told
    assert [e["kwargs"] for e in events] == ["{'x_request_id': 'mine'}"] * 2
    logs = "".join(pair.log(name) for name in ("api", "prefill", "decode0"))
    for secret in ("zanzibar", answer.choices[0].text[:12]):
        assert secret not in told + logs


def test_what_the_prefill_worker_had_cached_counts_as_cached(pair: Stack) -> None:
    """Nobody computed it for this request, though the decode worker pulled it."""
    prompt = "known " + LONG
    assert ask(pair, prompt).usage.prompt_tokens_details.cached_tokens == 0
    wait_until(lambda: all_free(pair), "all is free again")
    (worker,) = httpx.post(f"{pair.url}/admin/pools/{DECODE}/clear_kv_blocks").json()["cleared"]
    index = f"{pair.deployment}:kv:{DECODE}:{worker}"
    wait_until(lambda: not Redis.from_url(pair.redis_url).exists(index), "the index follows")
    again = ask(pair, prompt)
    assert len(seen(pair, again)["workers"]) == 2
    assert again.usage.prompt_tokens_details.cached_tokens > 1000


@contextmanager
def slow_pair(url: str, path: Path, decoders: int = 1, **prefill: Any) -> Iterator[Stack]:
    """A prompt takes the prefill worker a second."""
    decode = {"handoff": prefill["handoff"]} if "handoff" in prefill else {}
    with fleet(
        url, path, pool("prefill", prefill_tokens_per_s=800.0, **prefill), pool("decode", **decode), decoders
    ) as s:
        yield s


def test_a_prefill_worker_that_dies_while_computing_costs_time_and_no_request(valkey_url: str, tmp_path: Path) -> None:
    with slow_pair(valkey_url, tmp_path) as s, ThreadPoolExecutor() as threads:
        answer = threads.submit(ask, s)
        wait_until(lambda: leases(s, PREFILL)[0].running, "it computes")
        worker_process(s, "prefill").kill()
        told = seen(s, answer.result())
        assert told["attempts"] == 2
        assert len(told["workers"]) == 1
        assert (
            answer.result().choices[0].text
            == ask(s, extra_body={"ignore_eos": True, "cache_salt": "1"}).choices[0].text
        )
        wait_until(lambda: all_free(s), "all is free again")


def test_a_prefill_worker_that_dies_with_the_kv_is_replaced_by_a_local_prefill(valkey_url: str, tmp_path: Path) -> None:
    """The decode worker stands still, so that the handoff waits in its queue while its holder dies."""
    with fleet(valkey_url, tmp_path, pool("prefill"), pool("decode")) as s, ThreadPoolExecutor() as threads:
        whole = ask(s, extra_body={"ignore_eos": True, "cache_salt": "1"}).choices[0].text
        wait_until(lambda: all_free(s), "what is lent is the next prompt's")
        decode = worker_process(s, "decode0")
        decode.suspend()
        answer = threads.submit(ask, s)
        wait_until(lambda: leases(s, PREFILL)[0].lent_blocks, "it has lent the KV", 1.5, 0.01)
        worker_process(s, "prefill").kill()
        decode.resume()
        told = seen(s, answer.result())
        assert told["workers"][-1].get("handoff_refused") or told["attempts"] == 2
        assert answer.result().choices[0].text == whole
        wait_until(lambda: all_free(s), "all is free again")


def test_a_decode_worker_that_dies_before_the_hop_is_replaced_and_the_prompt_not_computed_again(
    valkey_url: str, tmp_path: Path
) -> None:
    with slow_pair(valkey_url, tmp_path, 2, handoff={"lease_s": 20.0}) as s, ThreadPoolExecutor() as threads:
        answer = threads.submit(ask, s, LONG * 3)  # three seconds: longer than a lease
        busy = wait_until(lambda: decoding_worker(s), "it is reserved")
        name = next(n for n in ("decode0", "decode1") if busy in s.log(n))
        worker_process(s, name).kill()
        told = seen(s, answer.result())
        assert told["attempts"] == 2
        assert [w["worker"] != busy for w in told["workers"]] == [True, True]
        assert told["workers"][1]["pulled"]["tokens"] == told["prompt_tokens"], "from the handoff of the first attempt"
        wait_until(lambda: all_free(s), "all is free again", 10)


def decoding_worker(s: Stack) -> str | None:
    redis = Redis.from_url(s.redis_url)
    return next(
        (w.worker for w in leases(s, DECODE) if redis.hlen(f"{s.directory.name}:reservations:{w.worker}")), None
    )


def test_when_a_decode_worker_dies_decoding_the_next_one_goes_on(valkey_url: str, tmp_path: Path) -> None:
    """The answer waits until there is one."""
    with fleet(valkey_url, tmp_path, pool("prefill"), pool("decode")) as s, ThreadPoolExecutor() as threads:
        answer = threads.submit(ask, s, max_tokens=2000)
        wait_until(lambda: leases(s, DECODE)[0].running, "it decodes")
        worker_process(s, "decode0").kill()
        s.worker(DECODE, "decode1")
        assert answer.result().usage.completion_tokens == 2000
        wait_until(lambda: leases(s, PREFILL)[0].used_blocks == 0, "the prefill worker's blocks are free")


@pytest.mark.parametrize(
    ("handoff", "says"),
    [
        ({"layout": "other"}, "layout"),
        ({"block_bytes": 32768}, "bytes"),
        ({"lease_s": 0.001}, "no longer"),
    ],
)
def test_a_handoff_that_is_refused_is_a_local_prefill(
    valkey_url: str, tmp_path: Path, handoff: dict[str, Any], says: str
) -> None:
    """Another layout, another block, a lease that is over."""
    with fleet(valkey_url, tmp_path, pool("prefill", handoff=handoff), pool("decode")) as s:
        answer = ask(s, extra_headers={"x-request-id": "mine.1"})
        assert "mine.1" in next(line for line in s.log("decode0").splitlines() if "handoff_refused" in line)
        told = seen(s, answer)
        assert says in told["workers"][1]["handoff_refused"]
        assert told["attempts"] == 1
        assert answer.usage.completion_tokens == 12
        wait_until(lambda: all_free(s), "all is free again", 10)


def test_an_engine_of_another_block_size_refuses(valkey_url: str, tmp_path: Path) -> None:
    with fleet(valkey_url, tmp_path, pool("prefill", block_size=16), pool("decode")) as s:
        assert "block" in seen(s, ask(s))["workers"][1]["handoff_refused"]
        wait_until(lambda: all_free(s), "all is free again", 10)


def test_a_transfer_that_takes_too_long_is_given_up(valkey_url: str, tmp_path: Path) -> None:
    """The holder stands still when the decode engine first talks to it."""
    with fleet(valkey_url, tmp_path, pool("prefill"), pool("decode")) as s, ThreadPoolExecutor() as threads:
        decode, prefill = worker_process(s, "decode0"), worker_process(s, "prefill")
        decode.suspend()
        answer = threads.submit(ask, s)
        wait_until(lambda: leases(s, PREFILL)[0].lent_blocks, "it has lent the KV", 1.5, 0.01)
        prefill.suspend()
        decode.resume()
        try:
            assert answer.result().usage.completion_tokens == 12
            told = seen(s, answer.result())
            assert told["workers"][-1].get("handoff_refused") or told["attempts"] == 2
        finally:
            prefill.resume()


def test_several_prefill_workers_hand_over_to_several_that_decode(valkey_url: str, tmp_path: Path) -> None:
    """Each to each, and every answer is that of its own prompt."""
    with fleet(valkey_url, tmp_path, pool("prefill"), pool("decode"), 2, 2) as s, ThreadPoolExecutor(8) as threads:
        prompts = [f"several {i} {LONG}" for i in range(20)]
        apart = list(threads.map(lambda prompt: ask(s, prompt), prompts))
        ways = {tuple(part["worker"] for part in seen(s, answer)["workers"]) for answer in apart}
        assert ways == {(p.worker, d.worker) for p in leases(s, PREFILL) for d in leases(s, DECODE)}
        wait_until(lambda: all_free(s), "all is free again", 10)
        assert sum(lease.prefill_tokens for lease in leases(s, DECODE)) <= len(prompts)
        httpx.patch(f"{s.url}/admin/pools/{PREFILL}/limits", json={"remote_tokens": 100_000})
        other = {"ignore_eos": True, "cache_salt": "other"}
        whole = list(threads.map(lambda prompt: ask(s, prompt, extra_body=other), prompts))
        assert [a.choices[0].text for a in apart] == [w.choices[0].text for w in whole]
        assert len({a.choices[0].text for a in apart}) > 15, "prompts have answers of their own"


def test_a_draining_decode_worker_gives_the_handoff_to_another(valkey_url: str, tmp_path: Path) -> None:
    with slow_pair(valkey_url, tmp_path, 2) as s, ThreadPoolExecutor() as threads:
        answer = threads.submit(ask, s)
        busy = wait_until(lambda: decoding_worker(s), "it is reserved")
        name = next(n for n in ("decode0", "decode1") if busy in s.log(n))
        worker_process(s, name).terminate()
        told = seen(s, answer.result())
        assert told["workers"][-1]["worker"] != busy
        wait_until(lambda: all_free(s), "all is free again", 10)


def test_a_decode_task_that_cant_be_enqueued_is_placed_anew(valkey_url: str, tmp_path: Path) -> None:
    """Redis says no to the prefill worker, as it would when it is full. The API replica enqueues it then."""
    redis = Redis.from_url(valkey_url)
    name = tmp_path.name
    keys = [
        f"%R~{name}:*",
        *(f"~{name}:{p}*" for p in ("worker", "seen", "pool", "prefill", "out", "reserv", "load", "request")),
    ]
    keys += [f"~{name}:{p}*" for p in ("kv", "orders", "prefix", "_kombu", "unacked", "celery", "reply")]
    redis.acl_setuser("half", enabled=True, passwords=["+x"], commands=["+@all"], keys=[], reset=True)
    redis.execute_command("ACL", "SETUSER", "half", "allchannels", *keys)
    env = {"XYLEM_REDIS_URL": valkey_url.replace("redis://", "redis://half:x@")}
    try:
        with fleet(valkey_url, tmp_path, pool("prefill"), pool("decode"), **env) as s:
            told = seen(s, ask(s))
            assert told["attempts"] == 2
            assert told["workers"][1]["pulled"]["tokens"] == told["prompt_tokens"], "with the handoff that came back"
            assert "decode_not_enqueued" in s.log("prefill")
            wait_until(lambda: all_free(s), "all is free again", 10)
    finally:
        redis.acl_deluser("half")


@pytest.fixture(scope="module")
def rooms(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Engines that meet while the prompt is being computed."""
    handoff = {"shape": "at_once", "timeout_s": 2.0}
    prefill, decode = pool("prefill", handoff=handoff), pool("decode", handoff=handoff)
    with fleet(valkey_url, tmp_path_factory.mktemp("rooms"), prefill, decode) as s:
        yield s


@pytest.mark.parametrize("wanted", [{}, {"temperature": 1.0, "seed": 7}, {"n": 2, "logprobs": 2}], ids=str)
def test_a_handoff_at_once_gives_the_same_answers(rooms: Stack, wanted: dict[str, Any]) -> None:
    prompt = f"room {sorted(wanted)} " + LONG
    apart = ask(rooms, prompt, **wanted)
    told = seen(rooms, apart)
    assert told["workers"][-1]["pulled"]["tokens"] == told["prompt_tokens"]
    httpx.patch(f"{rooms.url}/admin/pools/{PREFILL}/limits", json={"remote_tokens": 100_000})
    whole = ask(rooms, prompt, extra_body={"ignore_eos": True, "cache_salt": "other"}, **wanted)
    httpx.patch(f"{rooms.url}/admin/pools/{PREFILL}/limits", json={"remote_tokens": None})
    assert [c.text for c in apart.choices] == [c.text for c in whole.choices]
    wait_until(lambda: all_free(rooms), "all is free again")


def test_at_once_a_prefill_worker_that_dies_is_replaced_by_a_local_prefill(valkey_url: str, tmp_path: Path) -> None:
    handoff = {"shape": "at_once", "timeout_s": 3.0}
    with slow_pair(valkey_url, tmp_path, handoff=handoff) as s, ThreadPoolExecutor() as threads:
        answer = threads.submit(ask, s)
        wait_until(lambda: leases(s, PREFILL)[0].running, "it computes")
        worker_process(s, "prefill").kill()
        assert answer.result().usage.completion_tokens == 12
        wait_until(lambda: all_free(s), "all is free again")
