"""A chat's answer taken apart: whole and streamed, by a parser whose parts are written beforehand."""

import json
from typing import Any

import pytest
from msgspec.structs import replace
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import TypeAdapter

from app.dialects.dialect import Dialect, Thought
from app.dialects.names import find_dialect
from app.dialects.parts import Arguments, CallBegun, Content, Part, Reasoning
from app.dispatch.models.writing import Writing
from app.openai import answer_types
from app.openai.call_ids import call_id
from app.openai.chat import writer
from app.openai.chat_writer import ChatWriter
from app.openai.parts_writer import PartsWriter
from tests.unit.test_completion_writer import DELTA, LOGPROBS, call
from tests.unit.test_tools import CALLED, MESSAGES, RESULT, TIME, WEATHER, chat

CHUNK = TypeAdapter(answer_types.ChatCompletionChunk)
ANSWER: dict[str, list[Part]] = {
    "t": [Reasoning("Let me")],
    "u": [Reasoning(" see.")],
    "c": [Content("One moment.")],
    "-": [],
    "b": [CallBegun(0, "get_weather")],
    "1": [Arguments(0, '{"city":')],
    "2": [Arguments(0, '"Kraków"}')],
    "n": [CallBegun(1, "get_time"), Arguments(1, "{}")],
}


THINKS = Dialect((Thought("<think>", ("</think>",)),))


class Scripted:
    """Each character stands for some parts; ~ holds one back to the end."""

    def __init__(self) -> None:
        self._held: list[Part] = []
        self.unfinished: set[int] = set()

    def feed(self, text: str) -> list[Part]:
        self._held += [Content("~")] * text.count("~")
        return [part for character in text.replace("~", "") for part in ANSWER[character]]

    def close(self) -> list[Part]:
        return self._held


def scripted(**fields: Any) -> PartsWriter:
    return PartsWriter(fields.pop("of", None) or call(), chat(**fields), Scripted)


def streamed(*texts: str, finish: str = "stop", **options: bool) -> list[Any]:
    """The data of each event, of which each delta has one or none."""
    chunk_writer = scripted(stream=True, stream_options=options or None)
    events = []
    for i, text in enumerate(texts, 1):
        raw = chunk_writer.delta(0, replace(DELTA, text=text, finish=finish if i == len(texts) else None))
        assert raw.count(b"data: ") == raw.count(b"\n\n") <= 1
        if raw:
            events.append(json.loads(raw.removeprefix(b"data: ")))
            ChatCompletionChunk.model_validate(events[-1], strict=True)
            CHUNK.validate_python(events[-1], strict=True)
    return events


def deltas(events: list[Any]) -> list[Any]:
    return [event["choices"][0]["delta"] for event in events]


def ends(events: list[Any]) -> list[Any]:
    return [event["choices"][0]["finish_reason"] for event in events]


def test_a_call_is_streamed_in_openais_order_and_shape() -> None:
    """Id, type and name once; then only pieces of the arguments."""
    events = streamed("t", "u", "c", "b", "-", "1", "2", "-")
    first = deltas(events)[3]["tool_calls"][0]
    assert first["id"].startswith("call_")
    assert deltas(events) == [
        {"reasoning_content": "Let me"},
        {"reasoning_content": " see."},
        {"content": "One moment."},
        {"tool_calls": [{"index": 0, "id": first["id"], "type": "function",
                         "function": {"name": "get_weather", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"city":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"Kraków"}'}}]},
        {},
    ]  # fmt: skip
    assert ends(events) == [None] * 6 + ["tool_calls"]


def test_all_parts_of_a_delta_are_one_event() -> None:
    """A client that resumes names the last event that it has."""
    (event,) = streamed("tucb12n")
    delta = event["choices"][0]["delta"]
    assert (delta["reasoning_content"], delta["content"]) == ("Let me see.", "One moment.")
    assert [(c["index"], c["function"]) for c in delta["tool_calls"]] == [
        (0, {"name": "get_weather", "arguments": '{"city":"Kraków"}'}),
        (1, {"name": "get_time", "arguments": "{}"}),
    ]
    assert ends([event]) == ["tool_calls"]


def calls_of(texts: list[str], finish: str = "stop") -> list[tuple[str, ...]]:
    """The calls that a client puts together from the stream."""
    calls: dict[int, dict[str, str]] = {}
    for delta in deltas(streamed(*texts, finish=finish)):
        assert delta.get("tool_calls") != []
        for piece in delta.get("tool_calls", []):
            into = calls.setdefault(piece["index"], {"id": "", "name": "", "arguments": ""})
            into["id"] += piece.get("id", "")
            into["name"] += piece["function"].get("name", "")
            into["arguments"] += piece["function"]["arguments"]
    return [tuple(call_parts.values()) for call_parts in calls.values()]


@pytest.mark.parametrize("texts", [["tucb12n"], [*"tucb12n"], ["tu", "cb1", "2n"], ["", "tucb1", "", "2", "n", "-"]])
def test_however_an_answer_is_cut_a_client_puts_the_same_together(texts: list[str]) -> None:
    """Streamed, and whole."""
    calls = calls_of(texts)
    assert [call_parts[1:] for call_parts in calls] == [("get_weather", '{"city":"Kraków"}'), ("get_time", "{}")]
    message = scripted().choice(0, replace(DELTA, text="".join(texts), finish="stop"))["message"]
    assert [(c["function"]["name"], c["function"]["arguments"]) for c in message["tool_calls"]] == [
        call_parts[1:] for call_parts in calls
    ]


@pytest.mark.parametrize(("text", "finish", "reason", "message"), [
    ("c", "stop", "stop", {"content": "One moment.", "reasoning_content": None}),
    ("", "stop", "stop", {"content": "", "reasoning_content": None}),
    ("tc", "length", "length", {"content": "One moment.", "reasoning_content": "Let me"}),
    ("bn", "stop", "tool_calls", {"content": None, "reasoning_content": None}),
    ("tb1", "length", "length", {"content": None, "reasoning_content": "Let me"}),
    ("cb1", "abort", "abort", {"content": "One moment.", "reasoning_content": None}),
    ("~c", "stop", "stop", {"content": "One moment.~", "reasoning_content": None}),
])  # fmt: skip
def test_a_whole_answer_has_its_parts(text: str, finish: Any, reason: str, message: dict[str, Any]) -> None:
    """An answer that only called has no content, and one that was cut off says so."""
    choice = scripted().choice(0, replace(DELTA, text=text, finish=finish))
    assert choice["finish_reason"] == reason
    assert message.items() <= choice["message"].items()
    assert ("tool_calls" in choice["message"]) == ("b" in text)
    body = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    if reason != "abort":
        TypeAdapter(answer_types.ChatChoice).validate_python(choice, strict=True)
        ChatCompletion.model_validate(body, strict=True)


def test_a_call_that_is_cut_off_stays_as_it_was_and_the_length_is_told() -> None:
    assert ends(streamed("b", "1", finish="length")) == [None, "length"]
    ((_, name, arguments),) = calls_of(["b", "1"], finish="length")
    assert (name, arguments) == ("get_weather", '{"city":')
    choice = scripted().choice(0, replace(DELTA, text="b1", finish="length"))
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city":'


@pytest.mark.parametrize("texts", [["tuc~b12nc"], [*"tuc~b12nc"], ["t", "uc~b1", "", "2n", "c-"]])
def test_however_an_answer_is_cut_its_text_is_the_same(texts: list[str]) -> None:
    """The text has no reasoning and no calls: both in what is read of it alone, and in the whole answer."""
    stream_writer, whole_writer = scripted(), scripted()
    cut = [replace(DELTA, text=text, finish="stop" if text is texts[-1] else None) for text in texts]
    read = "".join(stream_writer.content(0, d) for d in cut)
    whole = whole_writer.choice(0, replace(DELTA, text="".join(texts), finish="stop"))
    assert read == whole["message"]["content"] == "One moment.One moment.~"


def test_what_was_held_back_comes_with_the_end() -> None:
    events = streamed("~", "c", "-")
    assert deltas(events) == [{"content": "One moment."}, {"content": "~"}]
    assert ends(events) == [None, "stop"]


def test_the_id_of_a_call_is_the_same_on_every_replica_and_another_in_each_choice() -> None:
    of = call()
    ids = [
        scripted(of=of).choice(choice, replace(DELTA, text="bn", finish="stop"))["message"]["tool_calls"][index]["id"]
        for _ in range(2)
        for choice in range(3)
        for index in range(2)
    ]
    assert ids[:6] == ids[6:]
    assert len(set(ids)) == 6
    assert ids[1] == call_id(of.id, 0, 1)
    assert all(len(id_) == len("call_") + 24 for id_ in ids)
    assert call_id(call().id, 0, 0) != ids[0]


def test_each_choice_has_a_parser_of_its_own() -> None:
    chunk_writer = scripted(stream=True)
    for choice in (0, 1):
        chunk_writer.delta(choice, replace(DELTA, text="~"))
    assert b'"~"' in chunk_writer.delta(0, replace(DELTA, text="", finish="stop"))
    chunk_writer.delta(0, replace(DELTA, text="b"))
    assert b'"finish_reason":"stop"' in chunk_writer.delta(1, replace(DELTA, text="", finish="stop"))


def test_a_chunk_without_parts_is_sent_only_for_what_else_it_tells() -> None:
    assert streamed("-", "-", "c")[0]["choices"][0]["delta"] == {"content": "One moment."}
    silent = replace(DELTA, text="-")
    assert scripted(stream=True).delta(0, silent) == b""
    chunk = scripted(stream=True).delta(0, replace(silent, logprobs=LOGPROBS))
    assert json.loads(chunk.removeprefix(b"data: "))["choices"][0]["delta"] == {}
    usage = streamed("b", "1", "-", include_usage=True, continuous_usage_stats=True)
    assert [event["usage"]["prompt_tokens"] for event in usage] == [3, 3, 3]
    assert [event["usage"] for event in streamed("b", "-", include_usage=True)] == [None, None]


def test_a_parser_is_made_only_where_there_is_something_to_tell_apart() -> None:
    """The text goes on as it comes in all other cases."""
    hermes = find_dialect("hermes")
    of = call(writing=Writing(hermes))
    assert type(writer(of, chat())) is ChatWriter
    assert type(writer(of, chat(tools=[TIME], tool_choice="none"))) is ChatWriter
    text = '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>'
    choice = writer(of, chat(tools=[TIME, WEATHER])).choice(0, replace(DELTA, text=text, finish="stop"))
    assert choice["finish_reason"] == "tool_calls"
    assert [c["function"] for c in choice["message"]["tool_calls"]] == [{"name": "get_time", "arguments": "{}"}]
    assert type(writer(call(writing=Writing(hermes, reasons=True)), chat())) is PartsWriter


@pytest.mark.parametrize(("ends_with", "begun", "fields", "reasoning"), [
    ("\n", False, {}, None),
    ("\n", True, {}, "a"),
    ("<think>\n", False, {}, "a"),
    ("<think>\n\n</think>\n\n", True, {}, None),
    ("Well,", True,
     {"messages": [{"role": "assistant", "content": "Well,"}], "continue_final_message": True}, None),
])  # fmt: skip
def test_the_prompts_end_says_whether_an_answer_begins_inside_reasoning(
    ends_with: str, begun: bool, fields: dict[str, Any], reasoning: str | None
) -> None:
    """A client may tell the template to leave reasoning out."""
    of = call(writing=Writing(THINKS, True, begun))
    of.prompts = [of.model.tokenizer.encode("user" + ends_with, add_special_tokens=False)]
    message = writer(of, chat(**fields)).choice(0, replace(DELTA, text="a", finish="stop"))["message"]
    assert message["reasoning_content"] == reasoning


@pytest.mark.parametrize(("dialect", "ids"), [
    ("hermes", ("call_", 29)), ("mistral", ("", 9)), ("kimi_k2", ("functions.get_time:2", 20)),
])  # fmt: skip
def test_a_call_has_an_id_that_the_models_own_template_takes_back(dialect: str, ids: tuple[str, int]) -> None:
    """Mistral's wants nine characters, Kimi's the function and its number in the conversation."""
    of = call(writing=Writing(find_dialect(dialect)))
    body = chat(tools=[TIME], messages=[*MESSAGES, CALLED, RESULT])
    choice = PartsWriter(of, body, Scripted).choice(0, replace(DELTA, text="n", finish="stop"))
    (id_,) = [c["id"] for c in choice["message"]["tool_calls"]]
    assert (id_.startswith(ids[0]), len(id_)) == (True, ids[1])


def test_a_call_that_a_stop_string_cut_off_is_not_one_to_answer() -> None:
    choice = scripted().choice(0, replace(DELTA, text="b1", finish="stop", stop="Paris"))
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "Paris")


BROKEN = '<tool_call>{"name": "get_time", "arguments": {"zone": <b>}}</tool_call>'


@pytest.mark.parametrize(("text", "finish", "arguments"), [
    (BROKEN, "stop", ['{"zone": ']),
    (BROKEN + BROKEN.replace("<b>", "1"), "stop", ['{"zone": ', '{"zone": 1}']),
    (BROKEN.replace("<b>", "1"), "tool_calls", ['{"zone": 1}']),
])  # fmt: skip
def test_a_call_that_the_model_has_broken_is_not_one_to_answer(text: str, finish: str, arguments: list[str]) -> None:
    """Its text is no content, and its arguments are no JSON: a client sees both, however it reads the answer."""
    of = call(writing=Writing(find_dialect("qwen3")))
    choice = writer(of, chat(tools=[TIME])).choice(0, replace(DELTA, text=text, finish="stop"))
    assert (choice["finish_reason"], choice["message"]["content"]) == (finish, None)
    assert [each["function"]["arguments"] for each in choice["message"]["tool_calls"]] == arguments
    chunk_writer = writer(of, chat(tools=[TIME], stream=True))
    raw = [chunk_writer.delta(0, replace(DELTA, text=char)) for char in text]
    last = chunk_writer.delta(0, replace(DELTA, text="", finish="stop"))
    assert b'"content"' not in b"".join(raw)
    assert json.loads(last.removeprefix(b"data: "))["choices"][0]["finish_reason"] == finish


def thinking(**writing: Any) -> Any:
    """The call of a model that thinks, with as many tokens as that takes."""
    of = call(writing=Writing(THINKS, True, **writing))
    of.completion_tokens = 1000
    return of


THOUGHT = "It is in Kraków, 1,000 km from here. " * 20


@pytest.mark.parametrize("size", [1, 3, 7, 10_000])
async def test_tokens_of_reasoning_are_counted_the_same_however_the_answer_comes(size: int) -> None:
    """Tokens of the reasoning's text are counted without markers, in each choice for itself."""
    of = thinking()
    text = f"<think>{THOUGHT}</think>Yes."
    chunk_writer = writer(of, chat(stream=True, stream_options={"include_usage": True}))
    for choice in (0, 1):
        for at in range(0, len(text), size):
            chunk_writer.delta(choice, replace(DELTA, text=text[at : at + size]))
        chunk_writer.delta(choice, replace(DELTA, text="", finish="stop"))
    await chunk_writer.settle()
    event = json.loads(chunk_writer.last().split(b"\n\n")[0].removeprefix(b"data: "))
    each = len(of.model.tokenizer.encode(THOUGHT))
    assert event["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2 * each}
    CHUNK.validate_python(event, strict=True)
    whole = writer(of, chat())
    whole.answer([(i, replace(DELTA, text=text, finish="stop")) for i in (0, 1)])
    assert whole.usage() == event["usage"]


async def test_there_are_no_more_tokens_of_reasoning_than_tokens() -> None:
    of = thinking()
    of.completion_tokens = 7
    whole = writer(of, chat())
    whole.answer([(0, replace(DELTA, text=f"<think>{THOUGHT}", finish="length"))])
    assert whole.usage()["completion_tokens_details"] == {"reasoning_tokens": 7}
    silent = writer(of, chat(stream=True))
    silent.delta(0, replace(DELTA, text=f"<think>{THOUGHT}"))
    await silent.settle()
    assert "completion_tokens_details" not in silent.usage()  # which nobody has asked for


def test_the_pool_names_the_field_of_reasoning() -> None:
    """Whole and streamed."""
    of = thinking(reasoning_field="reasoning")
    end = replace(DELTA, text="<think>a</think>b", finish="stop")
    message = writer(of, chat()).choice(0, end)["message"]
    assert (message["reasoning"], message["content"], "reasoning_content" in message) == ("a", "b", False)
    chunk_writer = writer(of, chat(stream=True))
    one, other = (chunk_writer.delta(0, replace(DELTA, text=text)) for text in ("<think>a", "b</think>c"))
    assert json.loads(one.removeprefix(b"data: "))["choices"][0]["delta"] == {"reasoning": "a"}
    assert json.loads(other.removeprefix(b"data: "))["choices"][0]["delta"] == {"reasoning": "b", "content": "c"}


def test_a_client_may_want_no_reasoning() -> None:
    """The reasoning is counted all the same."""
    of = thinking()
    whole_writer = writer(of, chat(include_reasoning=False))
    answer = whole_writer.answer([(0, replace(DELTA, text="<think>a</think>b", finish="stop"))])
    assert answer["choices"][0]["message"] == {
        "role": "assistant", "content": "b", "refusal": None, "reasoning_content": None,
    }  # fmt: skip
    assert whole_writer.usage()["completion_tokens_details"] == {"reasoning_tokens": 1}
    stream_writer = writer(of, chat(include_reasoning=False, stream=True))
    assert stream_writer.delta(0, replace(DELTA, text="<think>a")) == b""
    assert b'{"content":"b"}' in stream_writer.delta(0, replace(DELTA, text="</think>b"))


def test_token_ids_come_with_every_chunk_that_has_some() -> None:
    chunk_writer = scripted(stream=True, return_token_ids=True)
    event = json.loads(chunk_writer.delta(0, replace(DELTA, text="-")).removeprefix(b"data: "))["choices"][0]
    assert (event["delta"], event["token_ids"]) == ({}, [7])
