"""Answers that are held to schemas and forced tools: real processes, the official client, a mock engine that obeys."""

import json
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import httpx
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.acceptance.test_recovery import data, lines
from tests.hostile_grammars import CIRCLES, DEEP, rules
from tests.serving import outlived, refused, replica_of, revive, served_by
from tests.stack import Stack, leases, mock_pool, pid_of_worker, timeline, wait_until

POOL = "decode-pool-a"
TEMPLATE = """{%- if tools %}{% for tool in tools %}{{ tool | tojson }}
{% endfor %}write <tool_call>{"name", "arguments"}{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}<|im_start|>assistant
"""
LOOK: dict[str, Any] = {
    "type": "object",
    "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}, "unit": {"enum": ["C", "F"]}},
    "required": ["days", "unit"],
    "additionalProperties": False,
}


class City(BaseModel):
    name: str
    people: int
    climate: Literal["dry", "wet"]


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": LOOK, **more}}


PLAYS = {"the script": '<tool_call>\n{"name": "look", "arguments": {"days": 12, "unit": "C"}}\n</tool_call>'}
ALONE = {"aside": {"step_share": 0}}  # beside others, nothing that can wait
served = served_by(
    {POOL: mock_pool(step_ms=10.0, script=PLAYS) | {"chat_template": TEMPLATE} | ALONE}, {"w1": POOL, "w2": POOL},
    XYLEM_DRAIN_TIMEOUT_S="0.2",
)  # fmt: skip


def asked(question: str = "What is it?", **fields: Any) -> dict[str, Any]:
    return {"model": "mock", "messages": [{"role": "user", "content": question}]} | fields


def numbers(count: int = 60, **fields: Any) -> dict[str, Any]:
    """A long answer of a schema, drawn."""
    of = {"type": "array", "items": {"type": "integer"}, "minItems": count, "maxItems": count}
    schema = {"type": "json_schema", "json_schema": {"name": "numbers", "schema": of}}
    return asked("Which ones?", response_format=schema, temperature=1.0, seed=5, **fields)


def test_a_schema_is_parsed_by_the_official_client(client: OpenAI) -> None:
    city = client.chat.completions.parse(**asked(response_format=City, seed=1)).choices[0].message.parsed
    assert isinstance(city, City)
    with client.chat.completions.stream(**asked(response_format=City, seed=1)) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == city


@pytest.mark.parametrize(("fields", "pattern"), [
    ({"guided_regex": r"[0-9]{4}-[0-9]{2}"}, r"[0-9]{4}-[0-9]{2}"),
    ({"guided_choice": ["one day", "never"]}, "one day|never"),
    ({"structured_outputs": {"grammar": 'root ::= "SELECT " ("a" | "b")'}}, "SELECT [ab]"),
    ({"guided_grammar": 'root ::= "SELECT " ("a" | "b")'}, "SELECT [ab]"),
    ({"guided_grammar": 'start: "SELECT " NAME\nNAME: /[ab]{1,2}/'}, "SELECT [ab]{1,2}"),
    ({"response_format": {"type": "json_object"}}, r"\{.*\}"),
])  # fmt: skip
def test_every_choice_of_every_prompt_fits(client: OpenAI, fields: dict[str, Any], pattern: str) -> None:
    answer = client.completions.create(model="mock", prompt=["Say", "And"], n=2, max_tokens=200, extra_body=fields)
    assert len(answer.choices) == 4
    for choice in answer.choices:
        assert re.fullmatch(pattern, choice.text, re.DOTALL)
        assert choice.finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("choice", "names", "finish"), [
    ("required", {"look", "go"}, "tool_calls"),
    ({"type": "function", "function": {"name": "go"}}, {"go"}, "stop"),
    ({"type": "allowed_tools", "allowed_tools": {
        "mode": "required", "tools": [{"type": "function", "function": {"name": "look"}}]}}, {"look"}, "tool_calls"),
], ids=["required", "named", "allowed"])  # fmt: skip
def test_a_forced_tool_is_called(client: OpenAI, choice: Any, names: set[str], finish: str, stream: bool) -> None:
    fields = asked(tools=[tool("look"), tool("go")], tool_choice=choice)
    if stream:
        with client.chat.completions.stream(**fields) as events:
            answer: Any = events.get_final_completion().choices[0]
    else:
        answer = client.chat.completions.create(**fields).choices[0]
    assert answer.finish_reason == finish
    assert not answer.message.content
    assert answer.message.tool_calls
    assert {call.function.name for call in answer.message.tool_calls} <= names
    for call in answer.message.tool_calls:
        arguments = json.loads(call.function.arguments)
        assert 1 <= arguments["days"] <= 9
        assert arguments["unit"] in ("C", "F")


def test_a_strict_tools_arguments_fit_whatever_the_model_would_write(client: OpenAI) -> None:
    """The model would write 12 days."""
    fields = asked("Play the script", parallel_tool_calls=False)
    loose, strict = (
        client.chat.completions.create(**fields, tools=[tool("look", strict=strict)]).choices[0]
        for strict in (False, True)
    )
    for answer, days in ((loose, {12}), (strict, set(range(1, 10)))):
        (call,) = answer.message.tool_calls or []
        assert json.loads(call.function.arguments)["days"] in days
        assert answer.finish_reason == "tool_calls"


def test_the_length_ends_a_forced_call_too(client: OpenAI) -> None:
    answer = client.chat.completions.create(**asked(tools=[tool("look")], tool_choice="required", max_tokens=12))
    assert answer.choices[0].finish_reason == "length"


def test_an_answer_is_the_same_though_its_worker_is_killed_in_the_middle_of_its_schema(
    served: Stack, client: OpenAI
) -> None:
    whole = client.chat.completions.create(**numbers()).choices[0]
    assert len(json.loads(whole.message.content or "")) == 60
    assert outlived(served, POOL, client.chat.completions.create(**numbers(), stream=True))[0] == whole.message.content
    revive(served)


def test_an_answer_is_the_same_though_its_worker_drains_in_the_middle_of_its_schema(
    served: Stack, client: OpenAI
) -> None:
    count = 200  # more than a worker needs to notice that it is to end
    whole = client.chat.completions.create(**numbers(count)).choices[0]
    text, victim, answer = "", 0, ""
    for chunk in client.chat.completions.create(**numbers(count), stream=True):
        text, answer = text + (chunk.choices[0].delta.content or ""), chunk.id
        if len(text) > 60 and not victim:
            victim = pid_of_worker(served, POOL, answer)
            os.kill(victim, signal.SIGTERM)
    assert text == whole.message.content
    assert timeline(served, answer)["attempts"] == 2
    wait_until(lambda: victim not in [lease.worker.pid for lease in leases(served, POOL)], "it has gone", 60)
    revive(served)


def test_an_answer_is_the_same_though_it_steps_aside_in_the_middle_of_its_schema(served: Stack, client: OpenAI) -> None:
    whole = client.chat.completions.create(**numbers()).choices[0]
    text, others = "", []
    with ThreadPoolExecutor() as threads:
        for chunk in client.chat.completions.create(**numbers(service_tier="flex"), stream=True):
            text += chunk.choices[0].delta.content or ""
            if len(text) > 60 and not others:
                plain = asked("Go on", max_tokens=600, extra_body={"ignore_eos": True})
                others = [threads.submit(client.chat.completions.create, **plain) for _ in range(6)]
        end_flags = [other.done() for other in others]
    assert text == whole.message.content
    assert all(end_flags), "it had more than enough time to end before these, and didn't go on beside them"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "param"), [
    ({"extra_body": {"guided_regex": "a("}}, "guided_regex"),
    ({"extra_body": {"guided_regex": "a", "guided_json": LOOK}}, "guided_regex"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "nothing"}}}},
     "response_format.json_schema.schema"),
    ({"tools": [tool("look"), tool("go", strict=True) | {"function": {"name": "go", "strict": True, "parameters": {
        "type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}}}]},
     "tools.1.function.parameters"),
    ({"tools": [tool("look")], "tool_choice": {"type": "function", "function": {"name": "fly"}}},
     "tool_choice.function.name"),
])  # fmt: skip
def test_what_is_no_grammar_is_refused_before_the_first_byte(
    client: OpenAI, fields: dict[str, Any], param: str, stream: bool
) -> None:
    with refused(param):
        client.chat.completions.create(**asked(stream=stream, **fields))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "fields", "param"), [
    ("chat/completions", {"guided_regex": "(.{1,500}){300,500}"}, "guided_regex"),
    ("completions", {"structured_outputs": {"regex": "(.{1,500}){300,500}"}}, "structured_outputs.regex"),
    ("responses", {"text": {"format": {"type": "json_schema", "name": "n", "schema": {
        "type": "string", "pattern": "^(.{1,500}){300,500}$"}}}}, "text.format.schema"),
])  # fmt: skip
def test_a_grammar_that_becomes_too_large_is_the_requests_fault(
    served: Stack, path: str, fields: dict[str, Any], param: str, stream: bool
) -> None:
    """Only the engine knows, amid the answer: it was a failure of the engine, and tried again on another worker."""
    prompt = {"responses": {"input": "?"}, "completions": {"prompt": "?"}}.get(path, asked("?"))
    body = {"model": "mock", "stream": stream} | prompt | fields
    answer = httpx.post(f"{served.url}/v1/{path}", json=body, timeout=60)
    if not stream:
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert "too large to follow" in answer.text
    assert "engine_failed" not in answer.text


def _format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}


def _hostile() -> Iterator[tuple[str, dict[str, Any], str]]:
    """Paths, fields and the field that an error has to name."""
    chat, text, responses, messages = "chat/completions", "completions", "responses", "messages"
    where = "response_format.json_schema.schema"
    for schema in (*DEEP.values(), *CIRCLES.values()):
        yield chat, {"response_format": _format(schema)}, where
    deep, circle = DEEP["anyOf"], CIRCLES["itself"]
    yield text, {"guided_grammar": rules(4000)}, "guided_grammar"
    yield text, {"structured_outputs": {"json": deep}}, "structured_outputs.json"
    yield chat, {"structured_outputs": {"grammar": rules(4000)}}, "structured_outputs.grammar"
    for schema in (deep, circle):
        of = {"type": "object", "properties": {"a": schema}, "$defs": schema.get("$defs", {})}
        of = of if schema is deep else {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}}
        places = {"tools": [{"type": "function", "function": {"name": "go", "parameters": of}}]}
        yield chat, places | {"tool_choice": "required"}, "tools.0.function.parameters"
        flat = {"type": "function", "name": "go", "parameters": of, "strict": True}
        yield responses, {"tools": [flat]}, "tools.0.parameters"
        yield (
            messages,
            {"tools": [{"name": "go", "input_schema": of}], "tool_choice": {"type": "any"}},
            ("tools.0.input_schema"),
        )
        form = {"type": "json_schema", "name": "n", "schema": schema}
        yield responses, {"text": {"format": form}}, "text.format.schema"


def test_a_grammar_of_which_a_compiler_would_die_is_refused_by_name(served: Stack) -> None:
    """The same process goes on."""
    prompts = {
        "completions": {"prompt": "?", "max_tokens": 5},
        "responses": {"input": "?", "max_output_tokens": 16},
    }
    running = [proc.poll() for proc in served.procs]
    for path, fields, param in _hostile():
        plain = prompts.get(path, {"messages": [{"role": "user", "content": "?"}], "max_tokens": 5})
        answer = httpx.post(f"{served.url}/v1/{path}", json={"model": "mock"} | plain | fields, timeout=60)
        assert answer.status_code == 400, answer.text
        assert param in answer.text
    assert [proc.poll() for proc in served.procs] == running


def test_a_schema_goes_on_at_another_replica_in_its_middle(served: Stack) -> None:
    other = replica_of(served, "api2")
    body = numbers(stream=True)
    whole = [data(event) for event in lines(f"{other}/v1/chat/completions", body, **{"x-xylem-resumable": "1"})]
    part = lines(f"{served.url}/v1/chat/completions", body, most=30, **{"x-xylem-resumable": "1"})
    served.names["api"].kill()
    last = part[-1].partition(" ")[0]
    rest = lines(f"{other}/v1/chat/completions", body, **{"last-event-id": last})
    texts = [
        "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk != "[DONE]")
        for chunks in (whole, [data(event) for event in part + rest])
    ]
    assert texts[0] == texts[1]
    assert len(json.loads(texts[0])) == 60
