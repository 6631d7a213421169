"""A response and its events are a function of request and log: whoever reads it, from where and in which pieces."""

import itertools
import json
from collections.abc import Sequence
from typing import Any, get_args

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseIncludable, ResponseStreamEvent
from openai.types.responses.response_item_list import ResponseItemList
from pydantic import TypeAdapter
from starlette.datastructures import QueryParams

from app.api.openai.responses.routes import query_of
from app.errors import RequestError, Saturated, WorkerLost
from app.ids import RequestId
from app.messages.events import Delta, Done, Event, Failed, TokenLogprob
from app.messages.kept import ResponseContext
from app.openai.responses.input_items import InputMessage
from app.openai.responses.items import items_of, page
from app.openai.responses.messages import as_messages
from app.openai.responses.response_object import ResponseObject, begin_object
from app.openai.responses.schemas import Includable, ItemsQuery, ResponseRequest, Retrieval
from app.openai.responses.sse_events import ResponseEvents
from app.schemas.validation import parse
from tests.present import present
from tests.refusals import refused

ID = RequestId("resp_0123")
OPENAIS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
LOGPROBS = [TokenLogprob('é"', 5, -0.5, [('é"', 5, -0.5), ("\n", 6, -1.25)])]
CANCELLED = Failed(ID, 0, "cancelled", "It was cancelled.")


def asked(**fields: Any) -> ResponseRequest:
    return ResponseRequest(model="m", input="x", **fields)


def delta(text: str, **fields: Any) -> Delta:
    return Delta(ID, 0, text, [1], **fields)


def begun(body: ResponseRequest) -> ResponseObject:
    """A new response object, of a model that writes plain text."""
    return begin_object({}, ID, 1600, body, ResponseContext())


texts = st.text(max_size=3) | st.sampled_from(["", '"', "\n\n", "\u2028", "🙂", "\x00", "data: [DONE]\n\n"])
deltas = st.builds(delta, texts, logprobs=st.sampled_from([None, [], LOGPROBS]))
ends = st.sampled_from([Done(ID, 0, 2, prompt_tokens=9, ended=1700.5), Failed(ID, 0, "worker_lost", "gone"), CANCELLED])


@st.composite
def logs(draw: st.DrawFn) -> list[Event]:
    """Whole or not."""
    log: list[Event] = [*draw(st.lists(deltas, max_size=8))]
    if log and draw(st.booleans()):
        log.append(delta("", finish=draw(st.sampled_from(["stop", "length"]))))
    return log + [draw(ends)] * draw(st.booleans())


bodies = st.sampled_from(
    [asked(), asked(background=True), asked(background=True, metadata={"a": "b"}, instructions="é")]
)


def written(body: ResponseRequest, batches: Sequence[Sequence[Event]], after: int = -1) -> bytes:
    events = ResponseEvents(begun(body), after)
    return events.opening() + b"".join(map(events.write, batches))


def read(raw: bytes) -> list[dict[str, Any]]:
    """Each event's data, whose name and number are those of its frame, too."""
    parsed_events = []
    for frame in raw.decode().split("\n\n")[:-1]:
        event, number, data = frame.split("\n")
        parsed_event = json.loads(data.removeprefix("data: "))
        assert event == f"event: {parsed_event['type']}"
        assert number == f"id: {parsed_event['sequence_number']}"
        parsed_events.append(parsed_event)
    return parsed_events


@given(bodies, logs())
def test_the_numbers_of_events_count_from_0_without_a_gap(body: ResponseRequest, log: list[Event]) -> None:
    numbers = [event["sequence_number"] for event in read(written(body, [log]))]
    assert numbers
    assert numbers == list(range(len(numbers)))


@given(bodies, logs(), st.data())
def test_the_events_are_the_same_in_however_many_batches_a_log_is_read(
    body: ResponseRequest, log: list[Event], data: st.DataObject
) -> None:
    """Another replica, or a later reader, finds other pieces."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(log)), max_size=4)))
    edges = [0, *cuts, len(log)]
    batches = [log[a:b] for a, b in itertools.pairwise(edges)]
    assert written(body, batches) == written(body, [log])


@given(bodies, logs())
def test_who_resumes_behind_an_event_gets_exactly_the_rest(body: ResponseRequest, log: list[Event]) -> None:
    whole = read(written(body, [log]))
    for after in range(-1, len(whole) + 1):
        assert read(written(body, [log], after)) == whole[after + 1 :]


@given(bodies, logs())
def test_every_event_is_one_that_openais_client_knows(body: ResponseRequest, log: list[Event]) -> None:
    """The client's strict types count, not its own reading: every field that they want is there."""
    events = read(written(body, [log]))
    assert events
    for event in events:
        OPENAIS.validate_python(event)


@given(bodies, logs())
def test_the_last_event_has_the_response_as_it_can_be_fetched(body: ResponseRequest, log: list[Event]) -> None:
    progress = begun(body)
    for event in log:
        progress.add(event)
    response = Response.model_validate(progress.response())
    events = read(written(body, [log]))
    if response.status in ("queued", "in_progress"):
        assert not response.usage
        assert "".join(e["delta"] for e in events if "delta" in e) == response.output_text
    else:
        assert events[-1]["response"] == progress.response()


def kinds(body: ResponseRequest, *log: Event) -> list[str]:
    return [event["type"].removeprefix("response.") for event in read(written(body, [log]))]


OPENED = ["output_item.added", "content_part.added"]
CLOSED = ["output_text.done", "content_part.done", "output_item.done"]
DONE = Done(ID, 0, 2, prompt_tokens=9, ended=1700.5)


def test_a_streams_events_come_in_openais_order() -> None:
    """A token that ends no character makes none."""
    answer_deltas = [delta("a"), delta(""), delta("b", finish="stop")]
    text = [*OPENED, "output_text.delta", "output_text.delta", *CLOSED, "completed"]
    assert kinds(asked(), *answer_deltas, DONE) == ["created", "in_progress", *text]
    assert kinds(asked(background=True), *answer_deltas, DONE) == ["created", "queued", "in_progress", *text]


@pytest.mark.parametrize(
    ("log", "status", "last"),
    [
        ([], "queued", "response.queued"),
        ([delta("a")], "in_progress", "response.output_text.delta"),
        ([delta("a", finish="stop"), DONE], "completed", "response.completed"),
        ([delta("a", finish="length"), DONE], "incomplete", "response.incomplete"),
        ([delta("a"), Failed(ID, 0, "worker_lost", "gone")], "failed", "response.failed"),
        ([Failed(ID, 0, "no_worker", "none")], "failed", "response.failed"),
        ([delta("a"), CANCELLED], "cancelled", "response.failed"),
        ([CANCELLED], "cancelled", "response.failed"),
    ],
)
def test_a_log_tells_the_status(log: list[Event], status: str, last: str) -> None:
    """The status has its reason, error, time of completion and usage, and the message has its own status."""
    progress = begun(asked(background=True))
    for event in log:
        progress.add(event)
    response = Response.model_validate(progress.response())
    assert response.status == status
    assert read(written(asked(background=True), [log]))[-1]["type"] == last
    assert (response.completed_at is not None) == (status == "completed")
    assert (response.incomplete_details is not None) == (status == "incomplete")
    assert (response.error is not None) == (status == "failed")
    assert (response.usage is not None) == (status in ("completed", "incomplete"))
    assert response.output_text == ("a" if any(isinstance(event, Delta) for event in log) else "")
    for item in response.output:
        assert item.type == "message"
        assert item.status == (status if status in ("in_progress", "completed") else "incomplete")


def test_a_response_counts_its_tokens() -> None:
    progress = begun(asked())
    for event in (delta("a"), Delta(ID, 0, "b", [2, 3]), DONE):
        progress.add(event)
    usage = present(Response.model_validate(progress.response()).usage)
    assert (usage.input_tokens, usage.input_tokens_details.cached_tokens) == (9, 2)
    assert (usage.output_tokens, usage.total_tokens) == (3, 12)


@pytest.mark.parametrize(("error", "code"), [(WorkerLost, "server_error"), (Saturated, "rate_limit_exceeded")])
def test_an_error_has_openais_code_and_ours_in_its_message(error: Any, code: str) -> None:
    progress = begun(asked())
    progress.add(Failed(ID, 0, error.code, "why"))
    assert progress.response()["error"] == {"code": code, "message": f"why ({error.code})"}


def test_instructions_and_messages_are_the_conversation() -> None:
    """A message that an earlier response answered with is taken, too."""
    earlier = begun(asked())
    earlier.add(delta("hello"))
    raw = {
        "model": "m",
        "instructions": "be kind",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
            *earlier.response()["output"],
            {"type": "message", "role": "user", "content": "c"},
        ],
        "max_output_tokens": 5,
        "seed": 7,
        "top_logprobs": 2,
        "include": ["message.output_text.logprobs"],
    }
    body = parse(ResponseRequest, json.dumps(raw).encode())
    body.check()
    chat = body.as_chat()
    assert [m.for_template() for m in chat.messages] == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "c"},
    ]
    assert (chat.max_completion_tokens, chat.seed, chat.logprobs, chat.top_logprobs) == (5, 7, True, 2)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1", "conversation": "c"}, "previous_response_id"),
        ({"conversation": "c", "store": False}, "conversation"),
        ({"reasoning": {"effort": "enormous"}}, "reasoning.effort"),
        ({"max_tool_calls": -1}, "max_tool_calls"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"verbosity": "lowest"}}, "text.verbosity"),
        ({"truncation": "all"}, "truncation"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"include": ["reasoning.thoughts"]}, "include.0"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"top_logprobs": 3, "include": ["reasoning.encrypted_content"]}, "top_logprobs"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: ""}}, f"metadata.{'k' * 65}"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0"),
        ({"background": True, "store": False}, "background"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"stop": "x"}, "stop"),
        ({"n": 2}, "n"),
        ({"user": "u" * 513}, "user"),
        ({"safety_identifier": "s" * 65}, "safety_identifier"),
        ({"prompt_cache_key": "k" * 257}, "prompt_cache_key"),
        ({"include": ["message.output_text.logprobs"] * 17}, "include"),
        ({"input": [{"role": "user", "content": "x", "id": "i" * 257}]}, "input.0.id"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with refused(param):
        parse(ResponseRequest, json.dumps({"model": "m", "input": "x"} | fields).encode()).check()


def test_what_is_kept_of_a_request_is_what_was_understood() -> None:
    """An earlier answer's logprobs, say, are read by nobody."""
    part = {"type": "output_text", "text": "é", "annotations": [{"a": None}] * 1000, "logprobs": [{"token": "x"}]}
    raw = {"model": "m", "input": [{"role": "assistant", "content": [part], "id": "msg_1"}], "store": None}
    body = parse(ResponseRequest, json.dumps(raw).encode())
    assert len(body.understood()) < 150
    again = parse(ResponseRequest, body.understood())
    assert again.understood() == body.understood()
    assert (again.as_chat(), again.user) == (body.as_chat(), body.user)


def test_null_is_not_given() -> None:
    """Null means that for known fields and for others."""
    raw = {"model": "m", "input": "x", "store": None, "background": True, "reasoning": None, "conversation": None}
    body = parse(ResponseRequest, json.dumps(raw).encode())
    body.check()
    assert body.kept


def test_a_query_is_checked_like_a_body() -> None:
    query = parse(Retrieval, b'{"stream": "true", "starting_after": "12"}')
    assert (query.stream, query.starting_after) == (True, 12)
    assert query_of(QueryParams("stream=true&include[]=a&include=b")) == b'{"stream":"true","include":["b","a"]}'
    for name in ("include", "include[]"):
        asked_for = query_of(QueryParams(f"{name}=reasoning.encrypted_content&{name}=message.output_text.logprobs"))
        parse(Retrieval, asked_for).check()
    for raw in (b'{"starting_after": "1"}', b'{"include": ["x"]}', b'{"stream": "true", "starting_after": "-1"}'):
        with pytest.raises(RequestError):
            parse(Retrieval, raw).check()


def test_a_message_may_be_as_the_easy_one() -> None:
    (message,) = as_messages([InputMessage(role="developer", content="x")])
    assert message.for_template() == {"role": "system", "content": "x"}


def test_the_penalties_reach_the_engine_and_the_object() -> None:
    """0 where none was asked for, as the object has to have them."""
    body = parse(ResponseRequest, b'{"model": "m", "input": "x", "presence_penalty": 1, "frequency_penalty": -0.5}')
    sampling = body.as_chat().sampling(5, logprobs=None)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1.0, -0.5)
    for request, penalties in ((body, (1.0, -0.5)), (asked(), (0.0, 0.0))):
        response = begun(request).response()
        assert (response["presence_penalty"], response["frequency_penalty"]) == penalties


def test_what_openai_can_include_is_asked_for_without_effect() -> None:
    """Logprobs are the exception: nothing else of it is in an answer."""
    kinds = get_args(ResponseIncludable)
    assert set(kinds) == set(get_args(Includable))
    for kind in kinds:
        body = parse(ResponseRequest, orjson.dumps({"model": "m", "input": "x", "include": [kind]}))
        body.check()
        assert body.as_chat().logprobs == (kind == "message.output_text.logprobs")


def said(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content} | fields


CONVERSATION = [
    said("developer", "rules"),
    said("user", [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]),
    said("assistant", [{"type": "output_text", "text": "c"}], phase="final_answer"),
    *(said("user", f"{i}") for i in range(7)),
]


def listed(given: Any, **query: Any) -> dict[str, Any]:
    item_page = page(items_of(ID, ResponseRequest(model="m", input=given).items), ItemsQuery(**query))
    ResponseItemList.model_validate(item_page)
    return item_page


def test_input_items_are_those_that_were_sent() -> None:
    """Each in OpenAI's shape, the last one first unless asked otherwise; a text is one message of the user."""
    messages = parse(ResponseRequest, orjson.dumps({"model": "m", "input": CONVERSATION})).input
    data = listed(messages, order="asc")["data"]
    assert [item["role"] for item in data] == [message["role"] for message in CONVERSATION]
    assert [part["text"] for part in data[1]["content"]] == ["a", "b"]
    assert (data[2]["content"][0]["type"], data[2]["phase"]) == ("output_text", "final_answer")
    assert data == listed(messages, order="asc")["data"] == listed(messages)["data"][::-1]
    (only,) = listed("x")["data"]
    assert (only["role"], only["content"]) == ("user", [{"type": "input_text", "text": "x"}])


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 3, 10, 100])
def test_pages_of_input_items_have_each_item_once(order: str, limit: int) -> None:
    """The id of a page's last item leads to the next page."""
    messages = parse(ResponseRequest, orjson.dumps({"model": "m", "input": CONVERSATION})).input
    whole, items, after = listed(messages, order=order, limit=100)["data"], [], None
    while True:
        one = listed(messages, order=order, limit=limit, after=after)
        items += one["data"]
        assert (one["first_id"], one["last_id"]) == (one["data"][0]["id"], one["data"][-1]["id"])
        assert one["has_more"] == (len(items) < len(whole))
        if not one["has_more"]:
            break
        after = one["last_id"]
    assert items == whole
    with refused("after"):
        listed(messages, after="msg_another")
