"""The Responses API with the official client: what runs in the background outlives connection, replica and worker."""

import json
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response

from app.errors import OUTCOMES
from tests.chaos.fleet import Fleet
from tests.serving import client_of, refused, serving
from tests.stack import BIN, Stack, all_free, leases, mock_pool, wait_until

POOL = "decode-pool-a"
ASKED: dict[str, Any] = {"model": "mock", "input": "Tell me a story.", "extra_body": {"seed": 7, "ignore_eos": True}}
LONG = 250  # tokens, at 10 ms each
ENDLESS = 7000  # more than a minute's work
ENDS_S = 20  # until what was ended has ended, at most: long before it would have by itself


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two API replicas and two workers, over a Redis of their own. What ends them is below all that does not."""
    directory = tmp_path_factory.mktemp("responses")
    with Fleet(directory / "fleet", {POOL: mock_pool(step_ms=10.0)}, workers=2) as f:
        yield f
        for i in range(2):
            assert "Traceback" not in f.stack.log(f"api-{i}")


@pytest.fixture
def frail(fleet: Fleet) -> Iterator[Fleet]:
    """Something may die: it is started again."""
    yield fleet
    for i in range(2):
        if fleet.process(f"api-{i}").poll() is not None:
            fleet.start_api(i)
    fleet.wait_whole()


def client(fleet: Fleet, api: int = 0) -> OpenAI:
    return client_of(fleet.urls()[api])


def free(fleet: Fleet) -> bool:
    return all_free(fleet.stack, POOL)


def whole(fleet: Fleet, tokens: int = LONG) -> str:
    """The undisturbed text."""
    with client(fleet) as c:
        return c.responses.create(**ASKED, max_output_tokens=tokens).output_text


def metrics(fleet: Fleet, api: int) -> str:
    return httpx.get(f"{fleet.urls()[api]}/metrics").text


def finished(c: OpenAI, response: str, timeout_s: float = 60) -> Response:
    """The response when it is over."""

    def over() -> Response | None:
        try:
            current = c.responses.retrieve(response)
        except (openai.APIConnectionError, openai.InternalServerError):
            return None
        return current if current.status not in ("queued", "in_progress") else None

    current = wait_until(over, "the response is over", timeout_s, 0.1)
    assert isinstance(current, Response)
    return current


def begun(c: OpenAI, tokens: int = LONG) -> str:
    """The id of a background response of which something has come."""
    response = c.responses.create(**ASKED, max_output_tokens=tokens, background=True)
    assert response.status == "queued"
    wait_until(lambda: c.responses.retrieve(response.id).output_text, "it has begun")
    return response.id


def kept(fleet: Fleet) -> set[str]:
    """The ids of all that is kept."""
    keys: Any = fleet.redis.keys("xylem:kept:*")
    return {key.decode().removeprefix("xylem:kept:") for key in keys}


def texts(events: Any) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


def test_a_response_is_made_whole_streamed_and_kept(fleet: Fleet) -> None:
    """The same text each way, with usage; other fields are those that were asked for."""
    with client(fleet) as c, client(fleet, 1) as other:
        response = c.responses.create(**ASKED, max_output_tokens=20, metadata={"a": "b"}, instructions="Be brief.")
        assert (response.status, response.metadata, response.instructions) == ("incomplete", {"a": "b"}, "Be brief.")
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == "max_output_tokens"
        assert response.usage is not None
        assert response.usage.output_tokens == 20
        assert response.usage.total_tokens == response.usage.input_tokens + 20
        assert other.responses.retrieve(response.id) == response

        text = whole(fleet, 20)
        for store in (True, False):
            events = list(c.responses.create(**ASKED, max_output_tokens=20, stream=True, store=store))
            assert [event.sequence_number for event in events] == list(range(len(events)))
            assert texts(events) == text
            assert events[-1].type == "response.incomplete"
            last = events[-1].response
            assert last.output_text == text
            if store:
                assert other.responses.retrieve(last.id) == last
            else:
                with pytest.raises(openai.NotFoundError):
                    c.responses.retrieve(last.id)
        transient_response = c.responses.create(model="mock", input="x", store=False)
        assert transient_response.status in ("completed", "incomplete")
        assert c.responses.create(**ASKED, max_output_tokens=20, store=False).output_text == text


def test_an_answer_can_be_the_input_of_the_next_request(fleet: Fleet) -> None:
    with client(fleet) as c:
        messages = [{"role": "user", "content": "Hello."}]
        first = c.responses.create(model="mock", input=messages, max_output_tokens=5)  # type: ignore[arg-type]
        going_on: Any = [*messages, *first.output, {"role": "user", "content": "Go on."}]
        with_logprobs = c.responses.create(
            model="mock", input=going_on, max_output_tokens=5, include=["message.output_text.logprobs"], top_logprobs=2
        )
        assert with_logprobs.usage is not None
        assert first.usage is not None
        assert with_logprobs.usage.input_tokens > first.usage.total_tokens
        (message,) = with_logprobs.output
        assert message.type == "message"
        (part,) = message.content
        assert part.type == "output_text"
        assert part.logprobs is not None
        assert [len(token.top_logprobs) for token in part.logprobs] == [2] * 5


def test_a_background_response_is_followed_on_another_replica_from_any_event_on(fleet: Fleet) -> None:
    """The events and their numbers are the same while it runs and when it is over."""
    with client(fleet) as c, client(fleet, 1) as other:
        response = begun(c)
        assert c.responses.retrieve(response).status == "in_progress"
        live = list(other.responses.retrieve(response, stream=True))
        assert [event.type for event in live[:3]] == ["response.created", "response.queued", "response.in_progress"]
        assert [event.sequence_number for event in live] == list(range(len(live)))
        assert live[-1].type == "response.incomplete"
        assert texts(live) == live[-1].response.output_text == whole(fleet)
        for api in (c, other):
            assert list(api.responses.retrieve(response, stream=True)) == live
            for after in (0, 2, 100, len(live) - 2):
                assert list(api.responses.retrieve(response, stream=True, starting_after=after)) == live[after + 1 :]
            assert list(api.responses.retrieve(response, stream=True, starting_after=len(live))) == []
            assert api.responses.retrieve(response) == live[-1].response


def test_a_background_stream_can_be_left_and_gone_on_with(fleet: Fleet) -> None:
    """The response that is left goes on without its reader."""
    with client(fleet) as c, client(fleet, 1) as other:
        with c.responses.create(**ASKED, max_output_tokens=LONG, background=True, stream=True) as stream:
            head = [next(stream) for _ in range(40)]
        assert head[0].type == "response.created"
        assert head[0].response.status == "queued"
        rest = other.responses.retrieve(head[0].response.id, stream=True, starting_after=head[-1].sequence_number)
        events = [*head, *rest]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert texts(events) == whole(fleet)


@pytest.mark.parametrize("canceller", [0, 1])
def test_a_cancelled_response_stops_long_before_its_end(fleet: Fleet, canceller: int) -> None:
    """Any replica cancels it, as often as one likes; the text that has come stays."""
    with client(fleet) as c, client(fleet, canceller) as by:
        response = begun(c, ENDLESS)
        stream = iter(c.responses.retrieve(response, stream=True))
        next(stream)
        result = by.responses.cancel(response)
        assert result.status == "cancelled"
        wait_until(lambda: free(fleet), "the engine is empty", ENDS_S)
        assert result.output_text
        assert by.responses.cancel(response) == result
        assert c.responses.retrieve(response) == result
        *_, last = stream
        assert last.type == "response.failed"
        assert last.response == result
        over = c.responses.create(**ASKED, max_output_tokens=2, background=True)
        end_state = finished(c, over.id)
        assert by.responses.cancel(over.id) == end_state


@pytest.mark.parametrize("canceller", [0, 1])
def test_a_cancelled_response_is_counted_as_cancelled(fleet: Fleet, canceller: int) -> None:
    """The replica that made it counts it, whichever one cancelled it.

    All outcomes are `ok` or an error's code.
    """

    def outcomes() -> dict[str, float]:
        samples = re.findall(r'^xylem_requests_total\{.*outcome="(.*?)".*\} (.*)$', metrics(fleet, 0), re.MULTILINE)
        return {outcome: float(count) for outcome, count in samples}

    before = outcomes().get("cancelled", 0)
    with client(fleet) as c, client(fleet, canceller) as by:
        by.responses.cancel(begun(c))
    wait_until(lambda: outcomes().keys() - OUTCOMES or outcomes().get("cancelled", 0) > before, "it is counted")
    assert outcomes().keys() <= OUTCOMES
    assert outcomes()["cancelled"] == before + 1


def test_a_cancelled_response_leaves_nothing_to_be_adopted(fleet: Fleet) -> None:
    with client(fleet) as c, client(fleet, 1) as other:
        for by in (c, other):
            response = begun(c, ENDLESS)
            assert fleet.redis.keys("xylem:kept-of:*")
            by.responses.cancel(response)
            wait_until(lambda: not fleet.redis.keys("xylem:kept-of:*"), "nobody owns it", ENDS_S)


@pytest.mark.parametrize("deleter", [0, 1])
def test_a_deleted_response_is_stopped_and_forgotten(fleet: Fleet, deleter: int) -> None:
    """The reader that follows it gets its end."""
    with client(fleet) as c, client(fleet, deleter) as by:
        response = begun(c, ENDLESS)
        stream = iter(c.responses.retrieve(response, stream=True))
        next(stream)
        answer = httpx.delete(f"{fleet.urls()[deleter]}/v1/responses/{response}")
        assert answer.json() == {"id": response, "object": "response", "deleted": True}
        assert list(stream)[-1].type == "response.failed"
        wait_until(lambda: free(fleet), "the engine is empty", ENDS_S)
        for call in (c.responses.retrieve, c.responses.cancel, c.responses.delete):
            with pytest.raises(openai.NotFoundError):
                call(response)
        time.sleep(1)  # its owner has heard of it, and has not written it anew
        with pytest.raises(openai.NotFoundError):
            by.responses.retrieve(response)


def test_only_background_responses_are_cancelled_or_streamed_later(fleet: Fleet) -> None:
    """Responses that exist can be cancelled or streamed; chat completions cannot."""
    with client(fleet) as c:
        response = c.responses.create(**ASKED, max_output_tokens=2)
        with pytest.raises(openai.BadRequestError, match="synchronous"):
            c.responses.cancel(response.id)
        with pytest.raises(openai.BadRequestError, match="not created with background=true"):
            c.responses.retrieve(response.id, stream=True)
        with pytest.raises(openai.BadRequestError, match="background"):
            c.responses.create(**ASKED, background=True, store=False)
        with pytest.raises(openai.BadRequestError, match="starting_after"):
            c.responses.retrieve(response.id, extra_query={"starting_after": 3})
        with pytest.raises(openai.NotFoundError):
            c.responses.retrieve("resp_0")
        chat = c.chat.completions.with_raw_response.create(
            model="mock",
            messages=[{"role": "user", "content": "x"}],
            max_tokens=1,
            extra_headers={"Idempotency-Key": "chat"},
        )
        with pytest.raises(openai.NotFoundError):
            c.responses.retrieve(chat.headers["x-xylem-kept"])


@pytest.mark.parametrize("body", [{"stream": True}, {}, {"stream": True, "store": False}, {"store": False}])
def test_closing_the_connection_stops_what_is_not_in_the_background(fleet: Fleet, body: dict[str, Any]) -> None:
    """Streamed or whole, kept or not; what was kept says that it is cancelled."""
    before = kept(fleet)
    raw = json.dumps({"model": "mock", "input": "x", "max_output_tokens": ENDLESS, "ignore_eos": True} | body).encode()
    with socket.create_connection(("127.0.0.1", fleet.api_ports[0])) as sock:
        head = b"POST /v1/responses HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        sock.sendall(head % len(raw) + raw)
        wait_until(lambda: not free(fleet), "it runs")
        new_ids = kept(fleet) - before
        assert len(new_ids) == body.get("store", True)
    wait_until(lambda: free(fleet), "the engine is empty", ENDS_S)
    with client(fleet) as c:
        for response in new_ids:
            assert c.responses.retrieve(response).status == "cancelled"


def test_a_request_that_is_sent_again_joins_the_first(fleet: Fleet) -> None:
    """Any replica joins it; and it goes on when the first connection breaks."""
    key = {"Idempotency-Key": "once"}
    with client(fleet) as c, client(fleet, 1) as other:
        with c.responses.create(**ASKED, max_output_tokens=LONG, stream=True, extra_headers=key) as stream:
            first = next(stream)
        assert first.type == "response.created"
        with other.responses.create(**ASKED, max_output_tokens=LONG, stream=True, extra_headers=key) as again:
            events = list(again)
        assert events[0] == first
        assert texts(events) == whole(fleet)
        with pytest.raises(openai.BadRequestError):
            other.responses.create(**ASKED, max_output_tokens=1, extra_headers=key)


def test_what_fails_says_why(fleet: Fleet) -> None:
    """The reason is an HTTP error where a client waits for it, and the status otherwise; over its deadline, both."""
    with client(fleet) as c:
        late: dict[str, Any] = {**ASKED, "extra_body": {"timeout": 0.3, "ignore_eos": True}, "max_output_tokens": LONG}
        with pytest.raises(openai.InternalServerError) as error:
            c.responses.create(**late)
        assert error.value.status_code == 504
        response = c.responses.create(**late, background=True)
        end_state = finished(c, response.id)
        assert end_state.status == "failed"
        assert end_state.error is not None
        assert end_state.error.code == "server_error"
        assert "deadline_exceeded" in end_state.error.message
        *_, last = c.responses.retrieve(response.id, stream=True)
        assert last.type == "response.failed"
        with pytest.raises(openai.NotFoundError):
            c.responses.create(model="nobody", input="x", background=True)


def test_nothing_of_a_prompt_is_in_a_log(fleet: Fleet) -> None:
    with client(fleet) as c:
        word = "Rumpelstiltskin"
        response = c.responses.create(model="mock", input=word, instructions=word, background=True)
        finished(c, response.id)
    for name in ("api-0", "api-1", f"{POOL}-0", f"{POOL}-1"):
        assert word not in fleet.stack.log(name)


@pytest.fixture(scope="module")
def keyed(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack that requires API keys, and keeps little for each."""
    env = {"XYLEM_REQUIRE_KEYS": "true", "XYLEM_KEEP_BYTES_PER_KEY": "60000", "XYLEM_DEPLOYMENT": "keyed"}
    with serving(valkey_url, tmp_path_factory.mktemp("keyed"), {POOL: mock_pool(step_ms=1.0)}, **env) as s:
        yield s


def holder(s: Stack, name: str, *limits: str) -> OpenAI:
    """A client with a new key."""
    command = [str(BIN / "xylem"), "keys", "create", name, *limits]
    out = subprocess.run(command, env=s.environment(), capture_output=True, text=True, check=True).stdout
    key = next(word for word in out.split() if word.startswith("xyl-"))
    headers = {"authorization": f"Bearer {key}"}
    wait_until(lambda: httpx.get(f"{s.url}/v1/models", headers=headers, timeout=30).is_success, "the key is valid")
    return client_of(s.url, api_key=key)


def test_a_response_is_only_for_the_api_key_that_made_it(keyed: Stack) -> None:
    """The response is not found with another key. A key over its limit is told so with its headers."""
    redis: Any = keyed.redis
    with holder(keyed, "alice") as alice, holder(keyed, "bob", "--rpm", "1") as bob:
        response = alice.responses.create(model="mock", input="x", max_output_tokens=2, background=True)
        assert finished(alice, response.id).status == "incomplete"
        for call in (bob.responses.retrieve, bob.responses.cancel, bob.responses.delete):
            with pytest.raises(openai.NotFoundError):
                call(response.id)
        assert alice.responses.retrieve(response.id).status == "incomplete"
        answer = bob.responses.with_raw_response.create(model="mock", input="x", max_output_tokens=2)
        assert answer.headers["x-ratelimit-limit-requests"] == "1"
        key_count = len(redis.keys("keyed:kept:*"))
        with pytest.raises(openai.RateLimitError) as error:
            bob.responses.create(model="mock", input="x", background=True)
        assert error.value.response.headers["retry-after"]
        assert len(redis.keys("keyed:kept:*")) == key_count


def test_kept_answers_fill_redis_up_to_a_bound(keyed: Stack) -> None:
    """The bound is that of one API key.

    It is told so, whatever it has kept, and other keys go on. Fields that are no part of a prompt are small.
    """
    redis: Any = keyed.redis
    with holder(keyed, "carol") as carol, holder(keyed, "dave") as dave:
        keys, before = redis.keys("keyed:kept:*"), redis.info("memory")["used_memory"]
        for _ in range(4):
            with refused("user"):
                carol.responses.create(model="mock", input="x", user="u" * 15_000_000)
        assert redis.info("memory")["used_memory"] - before < 2**20
        assert redis.keys("keyed:kept:*") == keys

        first = _chat(carol, "chat", {"Idempotency-Key": "once"})
        kept_before = 0
        with pytest.raises(openai.RateLimitError) as full:
            for _ in range(100):
                carol.responses.create(model="mock", input="word " * 200, max_output_tokens=20)
                kept_before += 1
        assert 5 < kept_before < 60
        assert full.value.code == "kept_answers_full"
        assert 0 < int(full.value.response.headers["retry-after"]) <= 3600, "until the next of them expires"
        with pytest.raises(openai.RateLimitError):  # what is smaller may still fit
            for _ in range(100):
                _chat(carol, "chat", {"X-Xylem-Resumable": "1"})
        with pytest.raises(openai.RateLimitError):
            _chat(carol, "chat", {"Idempotency-Key": "twice"})
        assert _chat(carol, "chat", {"Idempotency-Key": "once"}) == first, "it is joined"
        assert _chat(carol, "chat", {}) == first, "what is not kept is served"
        assert carol.responses.create(model="mock", input="x", max_output_tokens=2, store=False).output_text
        holders = set(redis.hkeys("keyed:kept-bytes"))
        response = dave.responses.create(model="mock", input="x", max_output_tokens=2)
        assert set(redis.hkeys("keyed:kept-bytes")) > holders
        dave.responses.delete(response.id)
        assert set(redis.hkeys("keyed:kept-bytes")) == holders


def _chat(c: OpenAI, text: str, headers: dict[str, str]) -> str:
    """The answer of the mock model, the same each time."""
    answer = c.chat.completions.create(
        model="mock", messages=[{"role": "user", "content": text}], seed=7, max_tokens=5, extra_headers=headers
    )
    return str(answer.choices[0].message.content)


def test_the_input_of_a_kept_response_can_be_listed(fleet: Fleet) -> None:
    """Clients list it on any replica, page by page; a response that is not kept, or deleted, has no list."""
    messages: Any = [{"role": "user", "content": f"Message {i}."} for i in range(5)]
    with client(fleet) as c, client(fleet, 1) as other:
        first_response = c.responses.create(model="mock", input=messages, max_output_tokens=2, instructions="Be brief.")
        items = list(
            other.responses.input_items.list(
                first_response.id, limit=2, order="asc", include=["reasoning.encrypted_content"]
            )
        )
        texts_of = [item.content[0].text for item in items if item.type == "message"]  # type: ignore[union-attr]
        assert texts_of == [message["content"] for message in messages]
        assert [item.id for item in c.responses.input_items.list(first_response.id)] == [
            item.id for item in items[::-1]
        ]
        with pytest.raises(openai.BadRequestError, match="after"):
            c.responses.input_items.list(first_response.id, after="msg_another")
        with pytest.raises(openai.BadRequestError, match="limit"):
            c.responses.input_items.list(first_response.id, limit=101)
        c.responses.delete(first_response.id)
        transient_response = c.responses.create(model="mock", input=messages, max_output_tokens=2, store=False)
        for response in (first_response, transient_response):
            with pytest.raises(openai.NotFoundError):
                c.responses.input_items.list(response.id)


def test_what_can_be_included_may_be_asked_for(fleet: Fleet) -> None:
    """The parameter is taken when a response is made, and when it is fetched, whole or as events."""
    include: Any = ["reasoning.encrypted_content", "message.output_text.logprobs"]
    fields = {**ASKED, "max_output_tokens": 5}
    with client(fleet) as c:
        response = c.responses.create(**fields, include=include[:1])
        assert c.responses.retrieve(response.id, include=include) == response
        behind = c.responses.create(**fields, background=True)
        assert list(c.responses.retrieve(behind.id, stream=True, include=include))[-1].type == "response.incomplete"


def test_penalties_change_an_answer_and_stand_in_its_object(fleet: Fleet) -> None:
    """0 where none was asked for."""
    body = {"model": "mock", "input": "Tell me a story.", "seed": 7, "ignore_eos": True, "max_output_tokens": 60}

    def said(**fields: Any) -> tuple[str, Any, Any]:
        response = httpx.post(f"{fleet.urls()[0]}/v1/responses", json=body | fields, timeout=60).json()
        return response["output"][0]["content"][0]["text"], response["presence_penalty"], response["frequency_penalty"]

    plain, *none = said()
    assert none == [0.0, 0.0]
    for penalties in (
        {"presence_penalty": 2.0, "frequency_penalty": 0},
        {"presence_penalty": 0, "frequency_penalty": 2.0},
    ):
        text, *values = said(**penalties)
        assert text != plain
        assert values == [*penalties.values()]


def test_a_response_is_finished_though_the_replica_that_owns_it_dies(frail: Fleet) -> None:
    """Its follower on another replica sees a pause, and the text is the undisturbed one."""
    text = whole(frail)
    with client(frail) as c, client(frail, 1) as other:
        response = begun(c)
        stream = iter(other.responses.retrieve(response, stream=True))
        events = [next(stream)]
        frail.process("api-0").send_signal(signal.SIGKILL)
        events += stream
        assert finished(other, response).output_text == text
        assert texts(events) == text
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert list(other.responses.retrieve(response, stream=True)) == events


def test_a_response_is_finished_though_its_worker_dies(frail: Fleet) -> None:
    text = whole(frail)
    with client(frail) as c, client(frail, 1) as other:
        response = begun(c)
        stream = iter(other.responses.retrieve(response, stream=True))
        next(stream)
        busy = next(n for n, _ in frail.worker_names if frail.process(n).pid == _busy(frail))
        frail.process(busy).send_signal(signal.SIGKILL)
        assert texts(stream) == text
        assert finished(c, response).output_text == text


def _busy(fleet: Fleet) -> int:
    """The pid of the worker that has a reservation."""
    (pid,) = [
        e.worker.pid for e in leases(fleet.stack, POOL) if fleet.redis.exists(f"xylem:reservations:{e.worker.id}")
    ]
    return pid


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
def test_a_response_is_finished_though_redis_restarts(frail: Fleet, by: signal.Signals) -> None:
    """Killed, it forgets up to a second; who follows still gets each event once."""
    text = whole(frail)
    with client(frail) as c, client(frail, 1) as other:
        response = begun(c)
        stream = iter(other.responses.retrieve(response, stream=True))
        events = [next(stream) for _ in range(20)]
        assert frail.redis_process is not None
        frail.redis_process.send_signal(by)
        frail.redis_process.wait()
        frail.start_redis()
        events += stream
        assert texts(events) == text
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert finished(c, response).output_text == text
        assert list(c.responses.retrieve(response, stream=True)) == events
