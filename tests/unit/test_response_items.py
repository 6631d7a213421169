"""Items of the Responses API: as clients send them, as a model sees them, and as an answer makes them."""

import itertools
import json
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import Field, TypeAdapter

from app.dialects.names import find_dialect
from app.dispatch.models.models import Model
from app.dispatch.models.writing import Writing
from app.errors import RequestError
from app.ids import RequestId
from app.messages.events import Delta, Done, Event, Failed
from app.messages.kept import KeptRequest, ResponseContext, decode_kept
from app.messages.wire import encode
from app.openai.call_ids import CallIds
from app.openai.conversation import for_template
from app.openai.model_parser import Place, make_parser
from app.openai.responses import answer_types
from app.openai.responses.history import History
from app.openai.responses.input_items import ItemReference
from app.openai.responses.items import items_of, response_of
from app.openai.responses.messages import as_messages, check_calls
from app.openai.responses.opaque import disclose, enclose
from app.openai.responses.output import Output
from app.openai.responses.response_object import ResponseObject
from app.openai.responses.schemas import ResponseRequest
from app.openai.responses.sse_events import ResponseEvents
from app.openai.responses.tools import custom_input
from app.openai.responses.truncation import from_item
from app.schemas.validation import parse
from tests.present import present
from tests.refusals import refused
from tests.unit.test_completion_writer import call

ID = RequestId("resp_0123")
OPENAIS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
SHAPES: TypeAdapter[Any] = TypeAdapter(Annotated[answer_types.AnyEvent, Field(discriminator="type")])
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"type": "function", "name": "get_weather", "description": "Weather.", "parameters": PARAMETERS}
PATCH = {"type": "custom", "name": "patch"}
CRM = {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [WEATHER, PATCH]}
DONE = Done(ID, 0, 2, prompt_tokens=9, ended=1700.5)


def asked(**fields: Any) -> ResponseRequest:
    return parse(ResponseRequest, json.dumps({"model": "m", "input": "x"} | fields).encode())


def model() -> Model:
    return call(writing=Writing(find_dialect("hermes"), True)).model


def progress(body: ResponseRequest) -> ResponseObject:
    of = model()
    parser = make_parser(of, body.prompt_request(), Place())
    output = Output("0123", parser, CallIds(of, ID, 0).of, body.tool_names(), encrypted=body.with_encrypted)
    return ResponseObject(ID, 1600, body, output, of)


def called(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def log(text: str, cuts: list[int], finish: str | None = "stop") -> list[Event]:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    events: list[Event] = [Delta(ID, 0, piece, [1]) for piece in pieces]
    return [*events, Delta(ID, 0, "", [], finish=finish)] if finish else events  # type: ignore[arg-type]


def told(body: ResponseRequest, events: list[Event]) -> list[dict[str, Any]]:
    event_writer = ResponseEvents(progress(body))
    raw = event_writer.opening() + event_writer.write(events)
    return [json.loads(line[6:]) for line in raw.decode().split("\n") if line.startswith("data: ")]


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


OPEN, CLOSE = ["output_item.added", "content_part.added"], ["content_part.done", "output_item.done"]
THOUGHT = [*OPEN, "reasoning_text.delta", "reasoning_text.done", *CLOSE]
SAID = [*OPEN, "output_text.delta", "output_text.done", *CLOSE]
FUNCTION = ["output_item.added", *(f"function_call_arguments.{kind}" for kind in ("delta", "done")), "output_item.done"]
CUSTOM = ["output_item.added", *(f"custom_tool_call_input.{kind}" for kind in ("delta", "done")), "output_item.done"]
ALL = f"<think>Hm.</think>Let me.{called('get_weather', city='Oslo')}{called('patch', input='a')}"


@pytest.mark.parametrize(("text", "items", "status"), [
    ("Hello.", [SAID], "completed"),
    ("", [[*OPEN, "output_text.done", *CLOSE]], "completed"),
    ("<think>Hm.</think>", [THOUGHT], "completed"),
    ("<think>Hm.</think>Hello.", [THOUGHT, SAID], "completed"),
    (called("get_weather", city="Oslo"), [FUNCTION], "completed"),
    (called("get_weather", city="Oslo") * 2, [FUNCTION, FUNCTION], "completed"),
    (called("crm__get_weather", city="Oslo"), [FUNCTION], "completed"),
    (called("crm__patch", input="x"), [CUSTOM], "completed"),
    (ALL, [THOUGHT, SAID, FUNCTION, CUSTOM], "completed"),
])  # fmt: skip
def test_each_items_events_come_between_its_beginning_and_its_end(
    text: str, items: list[list[str]], status: str
) -> None:
    """One item behind the other, all of them before the last event; with the fields that OpenAI's client wants."""
    body = asked(tools=[WEATHER, PATCH, CRM], include=["reasoning.encrypted_content"])
    events = told(body, [*log(text, []), DONE])
    assert kinds(events) == ["created", "in_progress", *(kind for item in items for kind in item), status]
    for event in events:
        OPENAIS.validate_python(event)
        SHAPES.validate_python(event, strict=True)
    of_items = [event for event in events if "output_index" in event]
    ids = {(event["output_index"], event.get("item_id") or event["item"]["id"]) for event in of_items}
    assert len(ids) == len(items)
    done_items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert events[-1]["response"]["output"] == done_items
    Response.model_validate(events[-1]["response"])
    assert {item["status"] for item in done_items} == {"completed"}


@pytest.mark.parametrize(("end", "finish", "last"), [
    (DONE, "length", "incomplete"), (Failed(ID, 0, "worker_lost", "gone"), None, "failed"),
])  # fmt: skip
def test_a_call_that_is_cut_off_is_incomplete(end: Event, finish: str | None, last: str) -> None:
    """Its arguments so far stay; the items before it are whole."""
    text = f"<think>Hm.</think>{called('get_weather', city='Oslo')}"[:-20]
    events = told(asked(tools=[WEATHER]), [*log(text, [], finish), end])
    output = events[-1]["response"]["output"]
    assert events[-1]["response"]["status"] == last
    assert [item["status"] for item in output] == ["completed", "incomplete"]
    assert '{"city": "Oslo"}'.startswith(output[1]["arguments"])
    assert (events[-2]["type"] == "response.output_item.done") == (last == "incomplete")


@pytest.mark.parametrize("cuts", [[], [*range(200)]])
def test_a_call_that_the_model_has_broken_is_incomplete(cuts: list[int]) -> None:
    """The calls beside it, and the response, are not."""
    good = called("get_weather", city="Oslo")
    text = good + good.replace('"Oslo"', "<b>") + good
    events = told(asked(tools=[WEATHER]), [*log(text, cuts, "stop"), DONE])
    response = events[-1]["response"]
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete", "completed"]
    assert response["status"] == "completed"


@given(st.lists(st.integers(0, len(ALL)), max_size=12), st.sampled_from(["stop", "length"]))
def test_items_are_the_same_however_the_text_was_cut(cuts: list[int], finish: str) -> None:
    body = asked(tools=[WEATHER, PATCH], include=["reasoning.encrypted_content"])

    def made(events: list[Event]) -> Any:
        of = progress(body)
        for event in events:
            of.add(event)
        return of.response()["output"]

    whole = made([*log(ALL, [], finish), DONE])
    events = told(body, [*log(ALL, cuts, finish), DONE])
    assert events[-1]["response"]["output"] == whole
    for kind, field in (("function_call_arguments.delta", "arguments"), ("reasoning_text.delta", "text")):
        joined_deltas = "".join(event["delta"] for event in events if event["type"] == f"response.{kind}")
        (last,) = [event for event in events if event["type"] == f"response.{kind.replace('delta', 'done')}"]
        assert joined_deltas == last[field]


def test_reasoning_is_counted_and_enclosed() -> None:
    body = asked(include=["reasoning.encrypted_content"], reasoning={"summary": "auto"})
    events = told(body, [*log("<think>Hm, é.</think>Yes.", [7, 8, 9, 13]), DONE])
    response = events[-1]["response"]
    (reasoning, _) = response["output"]
    assert disclose(reasoning["encrypted_content"]) == reasoning["content"][0]["text"] == "Hm, é."
    assert "encrypted_content" not in events[2]["item"]
    token_count = len(model().tokenizer.encode("Hm.", add_special_tokens=False))
    for cuts in ([], list(range(1, 20))):  # also where it came at once, or was held back as a call
        events = told(body, [Delta(ID, 0, "", [1] * 99), *log("<think>Hm.</think><tool_call>", cuts), DONE])
        assert events[-1]["response"]["usage"]["output_tokens_details"] == {"reasoning_tokens": token_count}
    assert response["reasoning"] == {"effort": None, "summary": "auto"}
    assert "encrypted_content" not in told(asked(), [*log("<think>a</think>", []), DONE])[-1]["response"]["output"][0]


def test_tools_are_functions_to_the_model_and_keep_their_own_names() -> None:
    deferred_tool = WEATHER | {"defer_loading": True, "allowed_callers": ["direct"]}  # without effect
    body = asked(tools=[deferred_tool, PATCH, CRM], tool_choice={"type": "allowed_tools", "mode": "auto", "tools": [
        {"type": "function", "name": "get_weather", "namespace": "crm"}, {"type": "custom", "name": "patch"},
    ]})  # fmt: skip
    body.check()
    assert next(tool.function.name for tool in body.chat_tools() or ()) == "get_weather"
    functions = [tool.for_template()["function"] for tool in body.as_chat().offered]
    assert [function["name"] for function in functions] == ["patch", "crm__get_weather"]
    assert functions[1]["description"] == "Customers.\n\nWeather."
    assert functions[0]["parameters"]["required"] == ["input"]
    (item,) = told(body, [*log(called("crm__get_weather", city="x"), []), DONE])[-1]["response"]["output"]
    assert (item["name"], item["namespace"], item["arguments"]) == ("get_weather", "crm", '{"city": "x"}')
    response = progress(body).response()
    assert (response["tools"][0]["strict"], response["tool_choice"]["mode"]) == (False, "auto")


@pytest.mark.parametrize(("arguments", "text"), [
    ('{"input": "a\\n"}', "a\n"), ('{"input": 1}', '{"input": 1}'), ('{"inp', '{"inp'), ("[]", "[]"), ("{}", "{}"),
    ('{"input": "a", "n": 1e999}', "a"),
])  # fmt: skip
def test_of_a_custom_tool_its_text_is_told_or_what_there_is(arguments: str, text: str) -> None:
    assert custom_input(arguments) == text


GOOD: dict[str, Any] = {"tools": [WEATHER]}


@pytest.mark.parametrize(("fields", "param"), [
    ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
    ({"tools": [WEATHER, {"type": "local_shell"}]}, "tools.1.type"),
    ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools.0.type"),
    ({"tools": [{"name": "x"}]}, "tools.0.type"),
    ({"tools": [{"type": "function"}]}, "tools.0.name"),
    ({"tools": [{"type": "function", "name": "x", "parameters": {"type": "x"}}]}, "tools.0.parameters"),
    ({"tools": [CRM | {"tools": [{"type": "file_search"}]}]}, "tools.0.tools.0.type"),
    ({"tools": [CRM, WEATHER | {"name": "crm__patch"}]}, "tools.1.name"),
    ({"tools": [CRM | {"tools": [WEATHER, WEATHER]}]}, "tools.0.tools.1.name"),
    ({"tool_choice": {"type": "function", "name": "get_weather"}}, "tool_choice"),
    (GOOD | {"tool_choice": {"type": "function", "name": "fly"}}, "tool_choice.name"),
    (GOOD | {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "fly"}]}},
     "tool_choice.tools.0.name"),
    (GOOD | {"tool_choice": {"type": "web_search"}}, "tool_choice"),
    ({"input": [{"type": "reasoning", "encrypted_content": "gAAAA"}]}, "input.0.encrypted_content"),
    ({"input": [{"type": "reasoning", "encrypted_content": "xylem1.é"}]}, "input.0.encrypted_content"),
    ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input.0.encrypted_content"),
    ({"input": [{"type": "function_call", "name": "x", "arguments": "{}"}]}, "input.0.call_id"),
    ({"input": [{"type": "computer_call_output"}]}, "input.0.type"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image"}]}]},
     "input.0.output.0"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
])  # fmt: skip
def test_what_is_not_understood_is_refused_by_its_place(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as error:
        asked(**fields).check()
    assert error.value.param == param
    assert param in error.value.message


def test_a_clients_words_in_an_error_are_no_place() -> None:
    """The words could otherwise be taken for a place."""
    schema = {"type": "object", "properties": {"tools.7.function": {"not": {}}}}
    body = asked(tools=[CRM, WEATHER | {"name": "f", "strict": True, "parameters": schema}])
    with pytest.raises(RequestError) as error:
        body.as_chat().bound_calls()
    placed_error = body.placed(error.value)
    assert placed_error.param == "tools.1.parameters"
    assert placed_error.message == "'tools.1.parameters': properties.tools.7.function.not can't be enforced."


CALL = {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city": "Oslo"}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "7"}]}
OWN = {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "namespace": "crm", "input": "a\n"}
TURN: list[dict[str, Any]] = [
    {"role": "user", "content": "?"},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": enclose("Hm.")},
    {"role": "assistant", "content": [{"type": "output_text", "text": "Let me.", "annotations": []}]},
    CALL,
    OWN,
    RESULT,
    {"type": "custom_tool_call_output", "call_id": "c2", "output": "done"},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "So."}]},
    {"role": "assistant", "content": "It is cold."},
    {"role": "assistant", "content": "Brr."},
]


def test_what_an_assistant_thought_said_and_called_is_one_message() -> None:
    """The length of a name with its namespace doesn't matter."""
    messages = for_template(as_messages(asked(input=[*TURN, CALL | {"namespace": "n" * 256}]).items))
    assert messages[-1].pop("tool_calls")[0]["function"]["name"] == f"{'n' * 256}__get_weather"
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "assistant", "assistant"]
    turn = messages[1]
    assert (turn["content"], turn["reasoning_content"]) == ("Let me.", "Hm.")
    assert [(c["function"]["name"], c["function"]["arguments"]) for c in turn["tool_calls"]] == [
        ("get_weather", {"city": "Oslo"}),
        ("crm__patch", {"input": "a\n"}),
    ]
    assert [(m["content"], m["name"]) for m in messages[2:4]] == [("7", "get_weather"), ("done", "crm__patch")]
    assert (messages[4]["reasoning_content"], messages[5]["content"]) == ("So.", "Brr.")


def test_an_earlier_refusal_is_a_text_for_the_model_and_comes_back_as_it_was() -> None:
    refusal = {"type": "refusal", "refusal": "I can't."}
    body = asked(input=[{"role": "user", "content": "?"}, {"role": "assistant", "content": [refusal]}])
    assert for_template(as_messages(body.items))[1]["content"] == "I can't."
    assert items_of(ID, body.items)[1]["content"] == [refusal]
    again = parse(ResponseRequest, body.understood())
    assert again.understood() == body.understood()
    history = parse(History, History(items=body.items).understood())
    assert history.items == body.items
    assert parse(History, json.dumps(history.model_dump(mode="json", exclude_none=True)).encode()) == history


def test_items_are_kept_as_they_were_understood() -> None:
    """The listed items have ids of ours."""
    body = asked(input=TURN, tools=[CRM], text={"format": {"type": "text"}}, client_metadata={"a": "b"})
    again = parse(ResponseRequest, body.understood())
    assert again.understood() == body.understood()
    assert b"client_metadata" not in body.understood()
    assert as_messages(again.items) == as_messages(body.items)
    items = items_of(ID, body.items)
    assert [item["type"] for item in items[3:6]] == ["function_call", "custom_tool_call", "function_call_output"]
    assert (items[5]["output"], items[1]["summary"]) == ([{"type": "input_text", "text": "7"}], [])
    assert len({item["id"] for item in items}) == len(TURN)
    history = parse(History, json.dumps({"items": items}).encode())
    assert as_messages(history.items) == as_messages(body.items)


def test_what_openais_package_parsed_comes_back_with_an_answer_and_is_not_kept() -> None:
    text = {"type": "output_text", "text": "{}"}
    plain = [{"role": "assistant", "content": [text]}, CALL]
    parsed_items = [
        {"role": "assistant", "content": [text | {"parsed": {"a": 1}}]},
        CALL | {"parsed_arguments": {"city": "Oslo"}},
    ]
    assert asked(input=parsed_items).understood() == asked(input=plain).understood()


def test_a_schema_of_the_text_is_kept_under_its_own_name() -> None:
    text_format = {"type": "json_schema", "name": "x", "schema": {"type": "object"}}
    body = parse(ResponseRequest, asked(text={"format": text_format}).understood())
    answer_format = present(body.asked_format())
    assert (answer_format.kind, answer_format.value) == ("json", {"type": "object"})
    assert answer_format.where == "text.format.schema"
    assert progress(body).response()["text"]["format"] == text_format


def test_an_output_wants_its_call_before_it() -> None:
    check_calls(asked(input=[CALL, RESULT]).items, 2)
    earlier = [*asked(input=[CALL]).items, *asked(input=[RESULT]).items]
    check_calls(earlier, 1)
    for items, own, where in (
        (asked(input=[RESULT, CALL]).items, 2, "input.0.call_id"),
        (asked(input=[CALL, {"role": "user", "content": "x"}, RESULT | {"call_id": "c2"}]).items, 2, "input.1.call_id"),
    ):
        with refused(where):
            check_calls(items, own)


def test_references_stand_for_the_items_that_were_found() -> None:
    name = "0123456789abcdef01234567"
    assert response_of(f"msg_{name}_0") == response_of(f"fc_{name}_in3") == f"resp_{name}"
    assert response_of("msg_ee2afda8-a4bd-5eb5-b519-5b1bdd2f5b49") is None
    body = asked(input=[{"id": "msg_1"}, {"type": "item_reference", "id": "msg_2"}])
    assert all(isinstance(item, ItemReference) for item in body.items)
    history = parse(History, json.dumps({"referenced": {"msg_1": {"role": "user", "content": "one"}}}).encode())
    with refused("input.1.id"):
        history.of(body.items)
    (history_item,) = history.of(body.items[:1])
    assert as_messages([history_item])[0].text == "one"


def test_truncation_keeps_rules_and_no_output_without_its_call() -> None:
    items = asked(input=[{"role": "developer", "content": "rules"}, *TURN]).items
    for first in range(len(items)):
        remaining_items = from_item(items, first)
        check_calls(remaining_items, len(remaining_items))
        assert remaining_items[0] is items[0]
    assert from_item(items, len(items) - 1) == [items[0], items[-1]]


def test_a_kept_request_of_before_has_no_context() -> None:
    old = encode([ID, "response", b"{}", 1.0, 2.0, "", False, ""])
    assert decode_kept(old).response == ResponseContext()
    new = KeptRequest(ID, "response", b"{}", 1.0, 2.0, response=ResponseContext(True, 3, b"{}", "conv_1"))
    assert decode_kept(encode(new)) == new
