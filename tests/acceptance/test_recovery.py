"""Real processes that die, stand still and come back in the middle of answers; clients see a pause."""

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from tests.serving import begin, client_of, replica_of, standing_still
from tests.stack import Stack, all_free, free_port, leases, metric, mock_pool, stack, wait_until

POOL = "decode-pool-a"


@pytest.fixture(scope="module")
def stacked(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    pools = {POOL: mock_pool(step_ms=10.0, answer_tokens=4000), "late-pool": mock_pool(model="late")}
    with stack(valkey_url, tmp_path_factory.mktemp("recovery"), pools, XYLEM_DEPLOYMENT="recovery") as s:
        yield s


@pytest.fixture
def fleet(stacked: Stack) -> Stack:
    """An API replica, and two workers that take 10 ms for a token: what the test before has ended is there again."""
    if stacked.runs("w3"):
        stacked.names["w3"].kill()
    begin(stacked, {"w1": POOL, "w2": POOL})
    return stacked


@pytest.fixture(scope="module")
def replica(stacked: Stack) -> str:
    """Another one."""
    return replica_of(stacked, "api2")


def busy(s: Stack) -> str:
    """The name of a worker that runs something."""

    def find() -> str:
        running = {lease.worker.pid for lease in leases(s, POOL) if lease.load.running}
        return next((name for name in ("w1", "w2") if s.names[name].pid in running), "")

    return str(wait_until(find, "a worker is busy"))


def nothing_left(s: Stack) -> None:
    wait_until(lambda: len(leases(s, POOL)) > 0 and all_free(s, POOL), "nothing is held or reserved")


BODY: dict[str, Any] = {"model": "mock", "prompt": "A fox went out", "max_tokens": 150, "ignore_eos": True, "seed": 7}


async def choices(s: Stack, **asked: Any) -> tuple[dict[int, Any], int]:
    """Each choice's text, tokens and finish; and the completion tokens that were counted."""
    choice_by_index: dict[int, Any] = {}
    usage = 0
    async with AsyncOpenAI(base_url=f"{s.url}/v1", api_key="none", max_retries=0, timeout=60) as c:
        stream = await c.completions.create(
            **{k: v for k, v in (BODY | asked).items() if k != "ignore_eos"},
            extra_body={"ignore_eos": True},
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            usage = chunk.usage.completion_tokens if chunk.usage else usage
            for choice in chunk.choices:
                one = choice_by_index.setdefault(choice.index, ["", [], []])
                one[0] += choice.text
                one[1] += (choice.logprobs.tokens or []) if choice.logprobs else []
                one[2] += [choice.finish_reason] if choice.finish_reason else []
    return choice_by_index, usage


def test_an_answer_whose_worker_is_killed_is_the_one_it_would_have_been(fleet: Stack) -> None:
    """Several choices, sampled, with logprobs and a stop string: no token is missing, there twice or counted twice."""

    async def run() -> None:
        fields: dict[str, Any] = {"n": 3, "temperature": 1, "logprobs": 0, "max_tokens": 300}
        (plain, _) = await choices(fleet, **fields)
        fields["stop"] = [plain[0][0][-30:-22]]  # one of them ends early
        reference = await choices(fleet, **fields)
        task = asyncio.create_task(choices(fleet, **fields))
        await asyncio.sleep(0.5)
        fleet.names[await asyncio.to_thread(busy, fleet)].send_signal(signal.SIGKILL)
        assert await task == reference
        assert reference[0][0][2] == ["stop"]

    asyncio.run(run())
    nothing_left(fleet)


def test_a_worker_that_stood_still_says_nothing_twice(fleet: Stack) -> None:
    """Another worker has its requests when it wakes.

    Its further messages are ignored, and the blocks that it holds become free.
    """

    async def run() -> None:
        fields = {"max_tokens": 500, "logprobs": 0}
        reference = await choices(fleet, **fields)
        task = asyncio.create_task(choices(fleet, **fields))
        await asyncio.sleep(0.5)
        process = fleet.names[await asyncio.to_thread(busy, fleet)]
        with standing_still(process.pid):
            await asyncio.to_thread(wait_until, lambda: len(leases(fleet, POOL)) == 1, "it is taken for dead")
            await asyncio.sleep(0.5)  # the other one goes on
        assert await task == reference

    asyncio.run(run())
    wait_until(lambda: len(leases(fleet, POOL)) == 2, "both live")
    nothing_left(fleet)


def test_requests_that_come_while_no_worker_is_left_are_answered_by_the_next_one(fleet: Stack) -> None:
    """Streams, whole, kept and of several prompts; at the replica that knew the workers, and at one started since."""
    for name in ("w1", "w2"):
        fleet.names[name].kill()
    wait_until(lambda: not leases(fleet, POOL), "all workers are gone")
    port = free_port()
    fleet.api("fresh", port)
    urls = [fleet.url, f"http://127.0.0.1:{port}"]
    wait_until(lambda: fleet.ready(urls[1]), "the fresh replica listens")
    ways: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({}, {}),
        ({"stream": True}, {}),
        ({"stream": True}, {"x-xylem-resumable": "1"}),
        ({"prompt": ["one", "two"]}, {}),
        ({"service_tier": "flex"}, {}),
    ]
    with ThreadPoolExecutor(len(urls) * len(ways)) as threads:
        futures = [
            threads.submit(httpx.post, f"{url}/v1/completions", json=BODY | body, headers=headers, timeout=100)
            for url in urls
            for body, headers in ways
        ]
        wait_until(lambda: held(urls) == 12, "all of them wait")
        assert not [answer.result().text for answer in futures if answer.done()]
        fleet.worker(name="w3")
        answers = [answer.result() for answer in futures]
    assert [answer.status_code for answer in answers] == [200] * len(futures)
    assert not [answer.text for answer in answers if '"error"' in answer.text or '"length"' not in answer.text]
    nothing_left(fleet)


def held(urls: list[str]) -> float:
    metrics = [line for url in urls for line in httpx.get(f"{url}/metrics", timeout=10).text.splitlines()]
    return sum(float(line.split()[1]) for line in metrics if line.startswith("xylem_requests_held "))


def test_what_a_killed_api_replica_had_asked_for_is_dropped(fleet: Stack) -> None:
    """Nobody hears it: engines stop, reservations go."""
    with httpx.Client(timeout=30) as http:
        body = BODY | {"max_tokens": 7000, "stream": True}  # more than a minute's work
        with http.stream("POST", f"{fleet.url}/v1/completions", json=body) as answer:
            assert answer.status_code == 200, answer.read()
            busy(fleet)
            fleet.names["api"].send_signal(signal.SIGKILL)
            fleet.names["api"].wait()
    wait_until(lambda: all_free(fleet, POOL), "engines and account are empty", 40)


def test_workers_are_restarted_one_after_the_other_and_no_request_fails(fleet: Stack) -> None:
    async def run() -> None:
        stop = asyncio.Event()
        answers: list[tuple[dict[int, Any], int]] = []

        async def ask() -> None:
            while not stop.is_set():
                answers.append(await choices(fleet, max_tokens=40))

        clients = [asyncio.create_task(ask()) for _ in range(8)]
        for name in ("w1", "w2"):
            process = fleet.names[name]
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 60) == 0
            fleet.worker(name=name)
            await asyncio.to_thread(fleet.wait_ready, 2)
            count = len(answers)
            await asyncio.to_thread(wait_until, lambda: len(answers) >= count + 2 * len(clients), "all go on")  # noqa: B023 (called at once)
        stop.set()
        await asyncio.gather(*clients)
        assert all(answer == answers[0] for answer in answers)

    asyncio.run(run())
    nothing_left(fleet)


CHAT = "/v1/chat/completions"
ASKED: dict[str, dict[str, Any]] = {
    "/v1/completions": BODY | {"stream": True, "n": 2, "stream_options": {"include_usage": True}},
    CHAT: {
        "model": "mock",
        "messages": [{"role": "user", "content": "A fox?"}],
        **{k: v for k, v in BODY.items() if k not in ("model", "prompt")},
        "stream": True,
    },
}


def lines(url: str, body: dict[str, Any], most: int = 10**6, **headers: str) -> list[str]:
    """The data of so many events at most, each behind its id."""
    events, last = [], ""
    with httpx.stream("POST", url, json=body, headers=headers, timeout=30) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("id: "):
                last = line[4:]
            elif line.startswith("data: "):
                events.append(f"{last} {line[6:]}")
                if len(events) == most:
                    break
    return events


def data(event: str) -> Any:
    """The event without what differs from request to request.

    The number of cached tokens differs too, when a request is tried again.
    """
    raw = event.partition(" ")[2]
    if raw == "[DONE]":
        return raw
    chunk = {k: v for k, v in json.loads(raw).items() if k not in ("id", "created")}
    if chunk.get("usage"):
        chunk["usage"].pop("prompt_tokens_details")
    return chunk


def joined(events: list[str]) -> list[Any]:
    """Joins the events of a stream: each choice's text, then the other events.

    Steps that wait for each other are one event, so the numbers of events differ.
    """
    texts: dict[int, str] = {}
    others = []
    for event in map(data, events):
        choices = event["choices"] if isinstance(event, dict) else []
        for choice in choices:
            text = choice.pop("text", None) or choice.get("delta", {}).pop("content", "")
            texts[choice["index"]] = texts.get(choice["index"], "") + text
        if not choices or any(choice["finish_reason"] for choice in choices):
            others.append(event)
    return [texts, *others]


@pytest.mark.parametrize("path", list(ASKED))
def test_a_stream_goes_on_at_another_replica_behind_the_last_event(fleet: Stack, replica: str, path: str) -> None:
    """Whether the first replica lives or was killed: the two parts are the whole answer."""
    url, url2 = f"{fleet.url}{path}", f"{replica}{path}"
    whole = joined(lines(url, ASKED[path]))
    for kill in (False, True):
        part = lines(url, ASKED[path], most=3, **{"x-xylem-resumable": "1"})
        last = part[-1].partition(" ")[0]
        if kill:
            fleet.names["api"].send_signal(signal.SIGKILL)
            fleet.names["api"].wait()
        rest = lines(url2, ASKED[path], **{"last-event-id": last})
        assert joined(part + rest) == whole
    nothing_left(fleet)


def test_a_request_sent_again_with_its_key_is_the_same_one(fleet: Stack) -> None:
    """One id, one text, one run on an engine; with another body the key is refused."""
    c = client_of(fleet.url)
    own = {"extra_headers": {"Idempotency-Key": "k1"}, "extra_body": {"ignore_eos": True}}
    fields: dict[str, Any] = {"model": "mock", "prompt": "A fox" * 80, "max_tokens": 20, "temperature": 1.0}
    before = metric(fleet, POOL, "prefill_tokens")
    answers = [c.completions.create(**fields, **own) for _ in range(3)]
    assert len({a.id for a in answers}) == len({a.choices[0].text for a in answers}) == 1
    tokens = answers[0].usage.prompt_tokens  # type: ignore[union-attr]
    time.sleep(1.2)
    assert metric(fleet, POOL, "prefill_tokens") - before <= tokens
    with pytest.raises(Exception, match="not that of the first request"):
        c.completions.create(**(fields | {"max_tokens": 21}), **own)
    nothing_left(fleet)


def test_a_chat_that_goes_on_without_its_reader_is_cancelled_by_its_id(fleet: Stack, replica: str) -> None:
    """Another replica than the one that makes it stops it, too; a text completion is no chat."""
    chats = f"{fleet.url}/v1/chat/completions"
    body = {
        "model": "mock", "messages": [{"role": "user", "content": "at length"}], "stream": True,
        "max_tokens": 2000, "ignore_eos": True,
    }  # fmt: skip
    with httpx.stream("POST", chats, json=body, headers={"idempotency-key": "long"}, timeout=30) as stream:
        id_, events = stream.headers["x-xylem-kept"], stream.iter_lines()
        next(events)
        reply = httpx.post(f"{replica}/v1/chat/completions/{id_}/cancel", timeout=30)
        assert reply.json() == {"id": id_, "object": "chat.completion.cancelled"}
        assert any('"cancelled"' in line for line in events)
    nothing_left(fleet)
    text = httpx.post(
        f"{fleet.url}/v1/completions", headers={"x-xylem-resumable": "1"}, timeout=30,
        json={"model": "mock", "prompt": "x", "max_tokens": 2},
    ).json()  # fmt: skip
    assert httpx.post(f"{chats}/{text['id']}/cancel", timeout=30).status_code == 404


def test_a_key_that_met_no_worker_is_served_when_it_comes_again(fleet: Stack) -> None:
    """A refusal is no answer: only answers are given twice."""
    ask = partial(
        httpx.post, f"{fleet.url}/v1/completions", json={"model": "late", "prompt": "x", "max_tokens": 3},
        headers={"idempotency-key": "k"}, timeout=30,
    )  # fmt: skip
    assert ask().status_code == 503
    fleet.worker("late-pool", "late")
    fleet.wait_ready(model="late")
    first, second = ask(), ask()
    assert (first.status_code, first.json()) == (200, second.json())
