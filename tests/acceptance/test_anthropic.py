"""Anthropic's API: real processes, the official client, and a mock engine that plays what a model would write."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import Anthropic
from anthropic.types import Message
from anthropic.types.messages import MessageBatch

from tests.serving import replica_of, served_by
from tests.stack import Stack, mock_pool, wait_until

MODEL = "claude-sonnet-4-mock"
TOOL: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CLAUDE_CODE = json.loads((Path(__file__).parent / "claude_code.json").read_text())
PLAYS = {  # the first of the alphabet that a prompt has in it
    "tool\nsunny": "It is sunny in Oslo.",
    "weather in Oslo": '<think>A tool knows.</think>Let me see.\n<tool_call>\n{"name": "get_weather", "arguments": '
    '{"city": "Oslo"}}\n</tool_call>',
    "restated": "<think>It is one two.</think>one two three",
    "to ten": "one two three four five six seven eight nine ten",
    # Claude Code's.
    "<session>": '{"title": "Hello"}',
    "tool\nhello": "It said hello.",
    "with echo": '<tool_call>\n{"name": "Bash", "arguments": {"command": "echo hello"}}\n</tool_call>',
}
TEMPLATE = """{%- if reasoning_effort in ("low", "high") %}{{ reasoning_effort }} {% endif %}
{%- if tools %}{% for tool in tools %}{{ tool | tojson }}
{% endfor %}write <tool_call>{"name", "arguments"}, <think> before{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}{{ call.function.name }}{% endfor %}<|im_end|>
{% endfor %}<|im_start|>assistant
"""


ARGS: dict[str, Any] = {"step_ms": 2.0, "answer_tokens": 16, "max_model_len": 2**17, "total_blocks": 2**15}
MINE = mock_pool(script=PLAYS, model=MODEL, **ARGS) | {"chat_template": TEMPLATE}
served = served_by(
    {"a": MINE, "b": mock_pool(model="nobody")}, {"worker": "a", "batch": "batch"}, XYLEM_PATIENCE_S="0.1"
)


@pytest.fixture
def client(served: Stack) -> Iterator[Anthropic]:
    with Anthropic(base_url=served.url, api_key="none", max_retries=0, timeout=60) as c:
        yield c


def asked(question: str, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 100, "messages": [{"role": "user", "content": question}]} | fields


def streamed(client: Anthropic, **fields: Any) -> Message:
    """Returns the message as the client's own helper puts it together."""
    with client.messages.stream(**fields) as stream:
        return stream.get_final_message()


def plain(message: Message) -> list[Any]:
    """Its blocks, without what each answer has of its own."""
    return [
        {k: v for k, v in block.to_dict().items() if k not in ("id", "signature", "parsed_output")}
        for block in message.content
    ]


def test_a_model_thinks_talks_and_calls_a_tool_whose_result_it_tells(client: Anthropic) -> None:
    """Whole and streamed alike; the history is made of the client's own objects."""
    question = asked("What is the weather in Oslo?", tools=[TOOL], thinking={"type": "adaptive"})
    first = streamed(client, **question)
    assert plain(client.messages.create(**question)) == plain(first) == [
        {"type": "thinking", "thinking": "A tool knows."},
        {"type": "text", "text": "Let me see.", "citations": None},
        {"type": "tool_use", "name": "get_weather", "input": {"city": "Oslo"}, "caller": {"type": "direct"}},
    ]  # fmt: skip
    assert (first.stop_reason, first.stop_sequence) == ("tool_use", None)
    result = {"type": "tool_result", "tool_use_id": first.content[2].to_dict()["id"], "content": "sunny"}
    turns = [*question["messages"], {"role": "assistant", "content": first.content}]
    second = client.messages.create(**question | {"messages": [*turns, {"role": "user", "content": [result]}]})
    assert [block["text"] for block in plain(second)] == [PLAYS["tool\nsunny"]]
    assert second.stop_reason == "end_turn"


@pytest.mark.parametrize(("fields", "text", "reason"), [
    ({"stop_sequences": ["zz", " three"]}, "one two", ("stop_sequence", " three")),
    ({}, PLAYS["to ten"], ("end_turn", None)),
])  # fmt: skip
def test_messages_name_their_stop_reason(client: Anthropic, fields: dict[str, Any], text: str, reason: Any) -> None:
    for message in (client.messages.create(**asked("Count to ten.", **fields)),
                    streamed(client, **asked("Count to ten.", **fields))):  # fmt: skip
        assert [block["text"] for block in plain(message)] == [text]
        assert (message.stop_reason, message.stop_sequence) == reason


def test_stop_sequences_count_in_text_only(client: Anthropic) -> None:
    fields = asked("What is restated?", thinking={"type": "adaptive"}, stop_sequences=["two"])
    for message in (client.messages.create(**fields), streamed(client, **fields)):
        assert [(b["type"], b.get("text", b.get("thinking"))) for b in plain(message)] == [
            ("thinking", "It is one two."), ("text", "one "),
        ]  # fmt: skip
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "two")


def test_more_tokens_than_there_is_room_for_may_be_asked_for(client: Anthropic) -> None:
    """Claude Code does so, whatever the model."""
    cut = client.messages.create(**asked("Count to ten.", max_tokens=3))
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 3)
    endless = asked("hi", max_tokens=2**30, extra_body={"ignore_eos": True, "timeout": 0.5})
    with pytest.raises(anthropic.APIStatusError) as late:
        streamed(client, **endless)
    assert late.value.body == {
        "type": "error",
        "error": {"type": "timeout_error", "message": "The request's deadline passed before it was finished."},
        "request_id": late.value.response.headers["request-id"],
    }


def test_an_answer_goes_on_behind_the_beginning_of_it(client: Anthropic) -> None:
    turns = [{"role": "user", "content": "Count to ten."}, {"role": "assistant", "content": "zero"}]
    answer = client.messages.create(**asked("", messages=turns))
    count = client.messages.count_tokens(model=MODEL, messages=turns)  # type: ignore[arg-type]
    assert answer.stop_reason == "end_turn"
    assert answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0) == count.input_tokens


def test_an_effort_is_the_nearest_that_the_template_knows(served: Stack) -> None:
    """The efforts that it knows are listed; a header names the one that the model had, if it is another."""
    card = httpx.get(f"{served.url}/v1/models/{MODEL}").json()
    assert (card["chat_template_kwargs"], card["reasoning_efforts"]) == (
        ["reasoning_effort"],
        ["low", "medium", "high"],
    )
    token_counts: dict[str, int] = {}
    for effort, header in (("low", None), ("medium", None), ("high", None), ("xhigh", "high"), ("max", "high")):
        body = asked("to ten", output_config={"effort": effort})
        for stream in (False, True):
            answer = httpx.post(f"{served.url}/v1/messages", json=body | {"stream": stream})
            assert answer.status_code == 200, answer.text
            assert answer.headers.get("x-xylem-reasoning-effort") == header
        token_counts[effort] = httpx.post(f"{served.url}/v1/messages", json=body).json()["usage"]["input_tokens"]
    assert token_counts["max"] == token_counts["xhigh"] == token_counts["high"] > token_counts["medium"]


def test_tokens_are_counted_as_the_answer_will_count_them(client: Anthropic) -> None:
    """The answer counts them apart from those that were cached."""
    prompt = asked("word " * 200, system=[{"type": "text", "text": "Be brief."}], tools=[TOOL])
    count = client.messages.count_tokens(**{k: v for k, v in prompt.items() if k != "max_tokens"}).input_tokens
    usages = [streamed(client, **prompt).usage for _ in range(2)]
    hits = [usage.cache_read_input_tokens or 0 for usage in usages]
    assert [usage.input_tokens + hit for usage, hit in zip(usages, hits, strict=True)] == [count, count]
    assert hits[1] > hits[0] + 100


def test_models_are_told_to_each_client_in_its_shape(served: Stack, client: Anthropic) -> None:
    assert [(model.id, model.type) for model in client.models.list()] == [(MODEL, "model"), ("nobody", "model")]
    assert client.models.retrieve("nobody").max_input_tokens == httpx.get(
        f"{served.url}/v1/models/nobody"
    ).json()["max_model_len"]  # fmt: skip
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("gpt-nonsense")
    assert httpx.get(f"{served.url}/v1/models").json()["object"] == "list"


@pytest.mark.parametrize(("fields", "error", "kind"), [
    ({"model": "gpt-nonsense"}, anthropic.NotFoundError, "not_found_error"),
    ({"model": "nobody"}, anthropic.APIStatusError, "overloaded_error"),
    ({"extra_body": {"temperature": 3}}, anthropic.BadRequestError, "invalid_request_error"),
    ({"messages": [{"role": "user", "content": "x" * 2**21}]}, anthropic.BadRequestError, "invalid_request_error"),
])  # fmt: skip
def test_an_error_has_anthropics_shape(client: Anthropic, fields: dict[str, Any], error: Any, kind: str) -> None:
    """Whole and streamed."""
    for stream in (False, True):
        with pytest.raises(error) as exc_info:
            client.messages.create(**asked("?", stream=stream, **fields))
        body = exc_info.value.body
        assert (body["type"], body["error"]["type"]) == ("error", kind)
        assert body["request_id"] == exc_info.value.request_id == exc_info.value.response.headers["x-request-id"]


def test_without_a_key_of_the_deployment_nobody_is_let_in(served: Stack) -> None:
    url = replica_of(served, "locked", XYLEM_REQUIRE_KEYS="true")
    with Anthropic(base_url=url, api_key="wrong", max_retries=0) as c:
        with pytest.raises(anthropic.AuthenticationError) as exc_info:
            c.messages.create(**asked("?"))
        assert exc_info.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]
        with pytest.raises(anthropic.AuthenticationError):
            c.models.list()
    assert httpx.get(f"{served.url}/v1/messages/nothing").json()["error"]["type"] == "not_found_error"


def test_a_kept_message_is_gone_on_with_behind_the_last_event_that_came(served: Stack) -> None:
    url, body = f"{served.url}/v1/messages", asked("What is the weather in Oslo?", tools=[TOOL], stream=True)
    raw = httpx.post(url, json=body, headers={"x-xylem-resumable": "1"}).text
    ids = [line[4:] for line in raw.splitlines() if line.startswith("id: ")]
    assert len(set(ids)) == len(ids) > 1, "a busy machine puts several deltas into one event"
    for last in ids[:: max(1, len(ids) // 4)]:
        rest = httpx.post(url, json=body, headers={"last-event-id": last}).text
        position = raw.index(f"id: {last}\n")
        assert rest == raw[raw.index("\n\n", position) + 2 :]


def test_claude_codes_requests_are_answered(served: Stack) -> None:
    """Recorded from its version 2.1.197, which asked for a title and a command, and told what that said.

    Its texts are cut.
    """
    texts = []
    for request in CLAUDE_CODE:
        url, body = f"{served.url}{request['path']}", request["body"] | {"model": MODEL}
        answer = httpx.post(url, json=body, headers=request["headers"], timeout=60)
        assert answer.status_code == 200, answer.text
        frames = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
        deltas = [frame["delta"] for frame in frames if frame["type"] == "content_block_delta"]
        texts.append("".join(delta.get("text", delta.get("partial_json")) for delta in deltas))
        assert frames[-1] == {"type": "message_stop"}
    assert texts == [PLAYS["<session>"], '{"command": "echo hello"}', PLAYS["tool\nhello"]]


def entry(custom_id: str, **more: Any) -> Any:
    """A request of a message batch."""
    return {"custom_id": custom_id, "params": asked("count to ten", max_tokens=16, **more)}


def ended(client: Anthropic, batch: str) -> MessageBatch:
    def over() -> MessageBatch | None:
        message_batch = client.messages.batches.retrieve(batch)
        return message_batch if message_batch.processing_status == "ended" else None

    message_batch = wait_until(over, "the message batch has ended", 60, 0.2)
    assert isinstance(message_batch, MessageBatch)
    return message_batch


def test_a_message_batch_answers_as_messages_do(client: Anthropic) -> None:
    """Each request has one result, also those that are refused; it counts nothing before its end, as Anthropic's."""
    batch = client.messages.batches.create(
        requests=[entry("good"), entry("beta"), entry("wrong", model="gpt-nonsense"), entry("streamed", stream=True)]
    )
    assert (batch.type, batch.processing_status, batch.ended_at) == ("message_batch", "in_progress", None)
    assert (batch.request_counts.processing, batch.results_url) == (4, None)
    assert batch.expires_at - batch.created_at == timedelta(hours=24)
    message_batch = ended(client, batch.id)
    assert message_batch.request_counts.model_dump() == {
        "processing": 0,
        "succeeded": 2,
        "errored": 2,
        "canceled": 0,
        "expired": 0,
    }
    assert (message_batch.archived_at, message_batch.cancel_initiated_at) == (None, None)
    results = {line.custom_id: line.result for line in client.messages.batches.results(batch.id)}
    assert set(results) == {"good", "beta", "wrong", "streamed"}
    online = client.messages.create(**entry("good")["params"])
    good = results["good"]
    assert good.type == "succeeded"
    assert (good.message.content, good.message.stop_reason) == (online.content, online.stop_reason)
    for name, kind in (("wrong", "not_found_error"), ("streamed", "invalid_request_error")):
        result = results[name]
        assert result.type == "errored"
        assert (result.error.type, result.error.error.type) == ("error", kind)


def test_message_batches_are_listed_cancelled_and_deleted(client: Anthropic) -> None:
    """No worker serves their model: so they run until they are cancelled."""
    batches = client.messages.batches
    ids = [batches.create(requests=[entry(f"{i}-{n}", model="nobody") for n in range(2)]).id for i in range(3)]
    with pytest.raises(anthropic.BadRequestError, match="cancel it"):
        batches.delete(ids[0])
    with pytest.raises(anthropic.BadRequestError):
        client.get(f"/v1/messages/batches/{ids[0]}/results", cast_to=httpx.Response)
    newest = batches.list(limit=2)
    assert ([batch.id for batch in newest.data], newest.has_more) == ([ids[2], ids[1]], True)
    assert (newest.first_id, newest.last_id) == (ids[2], ids[1])
    assert batches.list(limit=2, after_id=ids[1]).data[0].id == ids[0]
    before = batches.list(limit=1, before_id=ids[0])
    assert ([batch.id for batch in before.data], before.has_more) == ([ids[1]], True)
    for name in ("after_id", "before_id"):
        with pytest.raises(anthropic.BadRequestError, match=f"'{name}': 'nobody'"):
            batches.list(extra_query={name: "nobody"})
    assert [batch.id for batch in client.beta.messages.batches.list(limit=3)][:3] == ids[::-1]  # all pages of it
    for batch in ids:
        assert batches.cancel(batch).processing_status == "canceling"
    message_batch = ended(client, ids[0])
    assert (message_batch.request_counts.canceled, message_batch.request_counts.processing) == (2, 0)
    assert message_batch.cancel_initiated_at is not None
    assert [line.result.type for line in batches.results(ids[0])] == ["canceled"] * 2
    for batch in ids:
        ended(client, batch)
        assert batches.delete(batch).type == "message_batch_deleted"
        with pytest.raises(anthropic.NotFoundError):
            batches.retrieve(batch)


@pytest.mark.parametrize(("requests", "field"), [
    ([], "requests"),
    ([entry("a b")], "requests.0.custom_id"),
    ([entry("a"), entry("a")], "requests.1.custom_id"),
    ([{"custom_id": "a"}], "requests.0.params"),
    ([{"custom_id": "a", "params": None}], "requests.0.params"),
    ([entry("a") | {"extra": 1}], "requests.0.extra"),
])  # fmt: skip
def test_a_message_batch_that_cannot_be_read_names_the_field(client: Anthropic, requests: Any, field: str) -> None:
    with pytest.raises(anthropic.BadRequestError) as exc_info:
        client.messages.batches.create(requests=requests)
    error = exc_info.value.body["error"]  # type: ignore[index]
    assert (error["type"], error["message"].split(": ")[0]) == ("invalid_request_error", field)
