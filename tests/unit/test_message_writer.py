"""An answer as a message of content blocks: the exact events, and the same whole."""

import json
from typing import Annotated, Any

import orjson
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message as AnthropicsMessage
from msgspec.structs import replace
from pydantic import Field, TypeAdapter

from app import json_bytes
from app.anthropic.answer_types import AnthropicRefusal, Event, Message
from app.anthropic.message_writer import MessageWriter
from app.anthropic.messages import writer
from app.anthropic.schemas import MessagesRequest
from app.api.openai.kept_stream import KeptStream
from app.api.resumable.replay import Replay
from app.dialects.names import find_dialect
from app.dispatch.models.writing import Writing
from app.errors import EngineFailed
from app.schemas.validation import parse
from tests.unit.test_completion_writer import DELTA, call
from tests.unit.test_parts_writer import Scripted

BODY: dict[str, Any] = {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "?"}]}
EVENT: TypeAdapter[Any] = TypeAdapter(Annotated[Event | AnthropicRefusal, Field(discriminator="type")])
CITY = '{"city":"Kraków"}'


def written(*, parsed: bool = True, of: Any = None, **fields: Any) -> MessageWriter:
    body = parse(MessagesRequest, orjson.dumps(BODY | fields))
    return MessageWriter(of or call(), body, Scripted if parsed else None)  # type: ignore[arg-type]


def events(raw: bytes) -> list[dict[str, Any]]:
    """The data of each event, which is declared as it is, and named by its type."""
    parsed_events = []
    for frame in raw.decode().split("\n\n")[:-1]:
        name, data = frame.split("\n")
        parsed_events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {parsed_events[-1]['type']}"
        EVENT.validate_python(parsed_events[-1], strict=True)
    return parsed_events


def streamed(writer: MessageWriter, *texts: str, **end: Any) -> list[dict[str, Any]]:
    raw = writer.opening(1)
    for i, text in enumerate(texts, 1):
        raw += writer.delta(0, replace(DELTA, text=text, **({"finish": "stop"} | end if i == len(texts) else {})))
    return events(raw + writer.last())


def short(told: list[dict[str, Any]]) -> list[Any]:
    """The distinguishing parts of the events of blocks."""
    summary: list[Any] = []
    for event in told:
        match event:
            case {"type": "content_block_start", "index": i, "content_block": block}:
                summary.append((i, block["type"], block.get("name", "")))
            case {"type": "content_block_delta", "index": i, "delta": {"type": "signature_delta"}}:
                summary.append((i, "signed"))
            case {"type": "content_block_delta", "index": i, "delta": delta}:
                summary.append((i, delta["type"], next(value for key, value in delta.items() if key != "type")))
            case {"type": "content_block_stop", "index": i}:
                summary.append((i, "stop"))
            case {"type": kind}:
                summary.append(kind)
    return summary


def put_together(told: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that Anthropic's own client puts together."""
    message: Any = None
    buffers: dict[int, bytes] = {}
    for event in told:
        message = accumulate_event(event=event, current_snapshot=message, json_bufs=buffers)  # type: ignore[arg-type]
    answer: dict[str, Any] = message.to_dict()
    for block in answer["content"]:
        block.pop("parsed_output", None)
    return answer


def whole(writer: MessageWriter, text: str, **end: Any) -> dict[str, Any]:
    content = writer._content([(0, replace(DELTA, text=text, **({"finish": "stop"} | end)))])
    answer = writer._message(content, writer._stop())
    TypeAdapter(Message).validate_python(answer, strict=True)
    AnthropicsMessage.model_validate(answer)
    return json.loads(json_bytes.dumps(answer))  # type: ignore[no-any-return]


def test_blocks_come_one_after_the_other() -> None:
    stream_events = streamed(written(), "t", "u", "c", "b", "-", "1", "2", "n", "")
    assert short(stream_events) == [
        "message_start",
        (0, "thinking", ""), (0, "thinking_delta", "Let me"), (0, "thinking_delta", " see."),
        (0, "signed"), (0, "stop"),
        (1, "text", ""), (1, "text_delta", "One moment."), (1, "stop"),
        (2, "tool_use", "get_weather"), (2, "input_json_delta", '{"city":'), (2, "input_json_delta", '"Kraków"}'),
        (2, "stop"),
        (3, "tool_use", "get_time"), (3, "input_json_delta", "{}"), (3, "stop"),
        "message_delta", "message_stop",
    ]  # fmt: skip
    assert stream_events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None, "stop_details": None}


@pytest.mark.parametrize("texts", [["tucb12n"], [*"tucb12n"], ["tu", "cb1", "2n"], ["", "tucb1", "", "2", "n", "-"]])
def test_however_an_answer_is_cut_it_is_the_same(texts: list[str]) -> None:
    """Put together by Anthropic's client, and whole."""
    of = call()
    answer = put_together(streamed(written(of=of), *texts))
    assert answer == whole(written(of=of), "".join(texts))
    assert [block["type"] for block in answer["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert [block["input"] for block in answer["content"][2:]] == [json.loads(CITY), {}]
    ids = [block["id"] for block in answer["content"][2:]]
    assert len(set(ids)) == 2
    assert all(id_.startswith("toolu_") for id_ in ids)


def test_plain_text_is_one_block() -> None:
    stream_events = streamed(written(parsed=False), "a", "", '"\n', finish="length")
    assert short(stream_events) == [
        "message_start", (0, "text", ""), (0, "text_delta", "a"), (0, "text_delta", '"\n'), (0, "stop"),
        "message_delta", "message_stop",
    ]  # fmt: skip
    assert stream_events[-2]["delta"]["stop_reason"] == "max_tokens"
    assert short(streamed(written(parsed=False), "")) == ["message_start", "message_delta", "message_stop"]
    assert whole(written(parsed=False), "")["content"] == []


@pytest.mark.parametrize(("texts", "end", "reason"), [
    ("c", {}, ("end_turn", None)),
    ("cb12", {}, ("tool_use", None)),
    ("c", {"stop": "END"}, ("stop_sequence", "END")),
    ("cb12", {"stop": "END"}, ("stop_sequence", "END")),
    ("c", {"stop": 7}, ("end_turn", None)),
    ("cb1", {"finish": "length"}, ("max_tokens", None)),
])  # fmt: skip
def test_why_an_answer_ended_is_told(texts: str, end: dict[str, Any], reason: Any) -> None:
    for answer in (put_together(streamed(written(), texts, **end)), whole(written(), texts, **end)):
        assert (answer["stop_reason"], answer["stop_sequence"]) == reason


def calling() -> MessageWriter:
    """The writer of a model that calls as Qwen 3 does."""
    tool = {"name": "get_weather", "input_schema": {"type": "object"}}
    body = parse(MessagesRequest, orjson.dumps(BODY | {"tools": [tool]}))
    return writer(call(writing=Writing(find_dialect("qwen3"))), body)


def called(arguments: str) -> str:
    return f'<tool_call>{{"name": "get_weather", "arguments": {arguments}}}</tool_call>'


@pytest.mark.parametrize(("city", "reason"), [("Oslo", "end_turn"), ('"Oslo"', "tool_use")])
def test_a_call_that_the_model_has_broken_is_not_one_to_answer(city: str, reason: str) -> None:
    text = called(f'{{"city": ;{city}}}'.replace(';"', '"'))
    for answer in (put_together(streamed(calling(), *text)), whole(calling(), text)):
        assert (answer["stop_reason"], [block["type"] for block in answer["content"]]) == (reason, ["tool_use"])


def test_where_the_models_context_ended_it_that_is_told() -> None:
    assert whole(written(max_tokens=5), "c", finish="length")["stop_reason"] == "model_context_window_exceeded"


def test_an_answer_that_the_engine_gave_up_is_an_error() -> None:
    with pytest.raises(EngineFailed):
        streamed(written(), "c", finish="abort")


@pytest.mark.parametrize(("texts", "given"), [("b1", {}), ("b", {}), ("b12", json.loads(CITY))])
def test_a_call_that_is_cut_off_is_whole_what_the_client_makes_of_the_stream(texts: str, given: Any) -> None:
    of = call()
    answer = put_together(streamed(written(of=of), *texts, finish="length"))
    assert answer == whole(written(of=of), texts, finish="length")
    assert answer["content"][0]["input"] == given


@pytest.mark.parametrize(("written", "read"), [
    ("1e999", None), ("-1e999", None), ("[1e999, 1]", [None, 1]), ("NaN", None), ("1" * 30, int("1" * 30)),
    (r'"\ud83d"', "\ufffd"), (r'"a \ude00 b"', "a \ufffd b"), (r'"\ud83d\ud83d\ude00"', "\ufffd\U0001f600"),
    (r'"\\ud83d \ud83d\n"', "\\ud83d \ufffd\n"),
])  # fmt: skip
def test_a_number_that_json_does_not_have_is_null_half_a_character_is_replaced_and_the_rest_of_a_calls_input_stays(
    written: str, read: Any
) -> None:
    """Each made the whole input empty. A stream has what the model wrote."""
    arguments = f'{{"city": "Oslo", "n": {written}, "d": {"1" * 30}}}'
    (block,) = whole(calling(), called(arguments))["content"]
    assert block["input"] == {"city": "Oslo", "n": read, "d": int("1" * 30)}
    deltas = [one["delta"] for one in streamed(calling(), called(arguments)) if one["type"] == "content_block_delta"]
    assert "".join(delta["partial_json"] for delta in deltas) == arguments


def test_thinking_that_is_not_to_be_shown_is_only_signed() -> None:
    fields = {"thinking": {"type": "adaptive", "display": "omitted"}}
    of = call()
    stream_events = streamed(written(of=of, **fields), "t", "u", "c")
    assert short(stream_events)[1:4] == [(0, "thinking", ""), (0, "signed"), (0, "stop")]
    assert put_together(stream_events) == whole(written(of=of, **fields), "tuc")


def test_a_signature_is_the_same_on_every_replica_and_another_of_each_block() -> None:
    of = call()
    first, second = (whole(written(of=of), "tcu")["content"] for _ in range(2))
    assert first == second
    assert first[0]["signature"] != first[2]["signature"]


def test_the_usage_at_the_end_tells_what_was_cached() -> None:
    of = call()
    of.cached_tokens = 0
    writer = written(of=of)
    first_usage = events(writer.opening(1))[0]["message"]["usage"]
    of.cached_tokens = 2
    writer.delta(0, replace(DELTA, text="c", finish="stop"))
    usage = events(writer.last())[0]["usage"]
    field_names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert [first_usage[name] for name in field_names] == [3, 0, 0]
    assert [usage[name] for name in field_names] == [1, 2, 0]
    assert usage["output_tokens"] == 4


def test_a_call_has_an_id_that_the_models_own_template_takes_back() -> None:
    """Kimi's wants the function and its number in the conversation."""
    of = call(writing=Writing(find_dialect("kimi_k2")))
    use = {"type": "tool_use", "id": "x", "name": "get_time", "input": {}}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}
    history = [*BODY["messages"], {"role": "assistant", "content": [use]}, result]
    assert whole(written(of=of, messages=history), "b12")["content"][0]["id"] == "functions.get_weather:1"


def test_the_id_of_a_kept_delta_stands_at_the_last_of_its_events() -> None:
    """A client that has the last one has all of them."""
    stream = KeptStream.__new__(KeptStream)
    stream._writer, stream._call = written(), Replay.__new__(Replay)
    vars(stream._call).update(vars(call()), skip=0)
    raw = stream._chunk(0, replace(DELTA, text="tc"))
    frames = raw.split(b"\n\n")[:-1]
    assert [frame.startswith(b"id: ") for frame in frames] == [False] * (len(frames) - 1) + [True]
    assert len(frames) == 6
    one = stream._chunk(0, replace(DELTA, text="c"))
    assert one.startswith(b"id: ")
    assert one.count(b"\n\n") == 1
