"""The Responses API with tools, reasoning and conversations: two replicas, the official client, a model by script."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from redis import Redis

from tests.serving import client_of, refused, replica_of, served_by
from tests.stack import Stack, leases, mock_pool, wait_until

POOL = "decode-pool-a"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"type": "function", "name": "get_weather", "parameters": PARAMETERS}
PATCH: Any = {
    "type": "custom",
    "name": "patch",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"},
}
CRM: Any = {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [WEATHER, PATCH]}
TOOLS = [WEATHER, PATCH, CRM]


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


LONG = "Kraków " * 80
PLAYS = {  # in the order of the alphabet
    "1 more": "All of it.",
    "a codex answer 42": "The file says 42.",
    "read the number": "<think>Look.</think>I will look." + call("exec_command", cmd="echo a codex answer $((40+2))"),
    "in Paris": f"<think>It wants Paris.</think>Let me see.{call('get_weather', city='Paris')}",
    "at length": f"<think>Long.</think>{call('get_weather', city=LONG)}",
    "a patch": call("patch", input='*** "Begin"\n+ é'),
    "customer": call("crm__get_weather", city="Oslo") + call("crm__patch", input="x"),
    "7 degrees": "It is cold.",
    "another assistant": "They talked about Paris.",
    "thoughts|It wants Paris.|end": "I thought of Paris.",
    "a large number": call("get_weather", city=2**64),
}
TEMPLATE = """{%- if tools %}{% for tool in tools %}{{ tool | tojson }}
{% endfor %}write <tool_call>{"name", "arguments"}, <think> before{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}thoughts|{{ message.reasoning_content }}|end{% endif -%}
{{ message.content }}
{%- for call in message.tool_calls or [] %}{{ call.function.arguments | tojson }}{% endfor %}<|im_end|>
{% endfor %}<|im_start|>assistant
"""


# The dialect is guessed from the template.
served = served_by({POOL: mock_pool(step_ms=5.0, script=PLAYS) | {"chat_template": TEMPLATE}}, {"w1": POOL, "w2": POOL})


@pytest.fixture(scope="module")
def second(served: Stack) -> str:
    """Another replica."""
    return replica_of(served, "api2")


@pytest.fixture
def other(second: str) -> Iterator[OpenAI]:
    with client_of(second) as c:
        yield c


def asked(question: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "mock", "input": question, "tools": TOOLS} | fields


def kinds(response: Any) -> list[str]:
    return [item.type for item in response.output]


def ended(client: OpenAI, response: str) -> Any:
    def over() -> Any:
        current = client.responses.retrieve(response)
        return current if current.status not in ("queued", "in_progress") else None

    return wait_until(over, "the response is over", 60, 0.1)


def bare(response: Any) -> list[tuple[Any, ...]]:
    """Its output, without what two responses never have in common."""
    return [
        (
            item.type,
            item.status,
            [part.text for part in getattr(item, "content", None) or []],
            *(getattr(item, name, None) for name in ("name", "arguments", "encrypted_content")),
        )
        for item in response.output
    ]


def test_a_model_reasons_speaks_and_calls_in_items_of_their_own(client: OpenAI, other: OpenAI) -> None:
    """Whole, streamed, in the background, kept and not: the same items; and what is fetched is what was sent."""
    whole = client.responses.create(**asked("How is it in Paris?", include=["reasoning.encrypted_content"]))
    assert kinds(whole) == ["reasoning", "message", "function_call"]
    assert other.responses.retrieve(whole.id) == whole
    reasoning, message, tool_call = whole.output
    assert (reasoning.content[0].text, message.content[0].text) == ("It wants Paris.", "Let me see.")  # type: ignore[union-attr,index]
    assert (tool_call.name, json.loads(tool_call.arguments)) == ("get_weather", {"city": "Paris"})  # type: ignore[union-attr]
    assert whole.usage is not None
    assert 0 < whole.usage.output_tokens_details.reasoning_tokens < whole.usage.output_tokens
    for fields in ({}, {"store": False}, {"background": True}):
        with client.responses.stream(
            **asked("How is it in Paris?", include=["reasoning.encrypted_content"], **fields)
        ) as stream:
            final = stream.get_final_response()
        assert bare(final) == bare(whole)
    behind = client.responses.create(
        **asked("How is it in Paris?", include=["reasoning.encrypted_content"], background=True)
    )
    assert bare(ended(other, behind.id)) == bare(whole)
    numbers = [event.sequence_number for event in other.responses.retrieve(behind.id, stream=True)]
    assert numbers == list(range(len(numbers)))


def test_an_integer_of_any_length_is_repeated_wherever_a_request_is(served: Stack) -> None:
    """Answers, events and fetched responses have it: JSON has no longest integer in any language.

    Models write such integers too.
    """
    schema = {"type": "object", "properties": {"city": {"type": "integer", "maximum": 2**64, "enum": [2**64, 10**40]}}}
    body = {"model": "mock", "input": "Give a large number", "tools": [{"type": "function", "name": "get_weather"}]}
    body |= {"text": {"format": {"type": "text", "schema": {"maximum": 2**65}}}}
    body["tools"][0]["parameters"] = schema
    with httpx.Client(base_url=served.url, timeout=60) as http:
        whole = http.post("/v1/responses", json=body)
        assert (whole.status_code, whole.json()["tools"][0]["parameters"]) == (200, schema)
        assert whole.json()["text"]["format"]["schema"] == {"maximum": 2**65}
        raw_events = http.post("/v1/responses", json=body | {"stream": True}).text
        assert raw_events.count(json.dumps(schema, separators=(",", ":"))) == 3  # created, in progress, completed
        response = http.post("/v1/responses", json=body | {"background": True}).json()
        assert response["tools"][0]["parameters"] == schema

        def over() -> Any:
            current = http.get(f"/v1/responses/{response['id']}")
            return current.json() if current.json()["status"] == "completed" else None

        assert wait_until(over, "the response is over")["tools"][0]["parameters"] == schema
        tool = {"name": "get_weather", "input_schema": schema}
        message_body = {
            "model": "mock",
            "messages": [{"role": "user", "content": "Give a large number"}],
            "max_tokens": 99,
        }
        message = http.post("/v1/messages", json=message_body | {"tools": [tool]})
        assert [block.get("input") for block in message.json()["content"]] == [{"city": 2**64}]


def test_custom_tools_and_namespaces_are_called_by_the_clients_names(client: OpenAI) -> None:
    (patch,) = client.responses.create(**asked("Make a patch.")).output
    assert (patch.type, patch.name, patch.input) == ("custom_tool_call", "patch", '*** "Begin"\n+ é')  # type: ignore[union-attr]
    weather, inner = client.responses.create(**asked("Ask the customer.")).output
    assert (weather.type, weather.name, weather.namespace) == ("function_call", "get_weather", "crm")  # type: ignore[union-attr]
    assert (inner.type, inner.name, inner.namespace, inner.input) == ("custom_tool_call", "patch", "crm", "x")  # type: ignore[union-attr]
    back: Any = [{"role": "user", "content": "Make a patch."}, patch.model_dump(exclude_none=True)]
    back.append({"type": "custom_tool_call_output", "call_id": patch.call_id, "output": "7 degrees"})  # type: ignore[union-attr]
    assert client.responses.create(**asked(back)).output_text == "It is cold."


def test_a_call_is_answered_behind_the_response_at_another_replica(client: OpenAI, other: OpenAI) -> None:
    """The chain goes on so, also when its first response is deleted, and when the items come back from the client."""
    first = client.responses.create(**asked("How is it in Paris?"))
    (tool_call,) = [item for item in first.output if item.type == "function_call"]
    result: Any = [
        {
            "type": "function_call_output",
            "call_id": tool_call.call_id,
            "output": [{"type": "input_text", "text": "7 degrees"}],
        }
    ]
    then = other.responses.create(**asked(result, previous_response_id=first.id))
    assert (then.output_text, then.previous_response_id) == ("It is cold.", first.id)
    client.responses.delete(first.id)
    assert client.responses.create(**asked("1 more, please.", previous_response_id=then.id)).output_text == "All of it."
    (item,) = client.responses.input_items.list(then.id).data
    assert item.type == "function_call_output"
    items: Any = [{"role": "user", "content": "?"}, *first.output, *result]
    stateless = client.responses.create(**asked(items, store=False))
    assert stateless.output_text == then.output_text
    references: Any = [{"type": "item_reference", "id": then.output[0].id}, {"role": "user", "content": "1 more"}]
    assert other.responses.create(**asked(references)).output_text == "All of it."


def test_reasoning_comes_back_enclosed(client: OpenAI) -> None:
    first = client.responses.create(
        **asked("How is it in Paris?", include=["reasoning.encrypted_content"], store=False)
    )
    reasoning = first.output[0].model_dump(exclude_none=True, exclude={"content", "status"})
    assert "Paris" not in reasoning["encrypted_content"]
    back: Any = [{"role": "user", "content": "?"}, reasoning, {"role": "user", "content": "and?"}]
    assert client.responses.create(**asked(back, store=False)).output_text == "I thought of Paris."
    for wrong, param in ((reasoning | {"encrypted_content": "gAAAA"}, "input.0.encrypted_content"),):
        with refused(param):
            client.responses.create(**asked([wrong]))


def test_what_is_not_there_is_refused_by_name(client: OpenAI) -> None:
    for fields, param in (
        ({"previous_response_id": "resp_0"}, "previous_response_id"),
        ({"input": [{"type": "item_reference", "id": "msg_0"}]}, "input.0.id"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": ""}]}, "input.0.call_id"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ):
        with refused(param):
            client.responses.create(**(asked("x") | fields))
    with pytest.raises(openai.NotFoundError) as unknown:
        client.responses.create(**asked("x", conversation="conv_0"))
    assert unknown.value.param == "conversation"
    with pytest.raises(openai.BadRequestError, match=r"'items\.0\.id'"):
        client.conversations.create(items=[{"type": "item_reference", "id": "msg_0"}])


def test_a_conversation_has_what_was_said_in_it(client: OpenAI, other: OpenAI) -> None:
    """Every replica has it, whole, streamed or in the background; a response that is asked for twice is there once."""
    conversation = client.conversations.create(metadata={"a": "b"}, items=[{"role": "user", "content": "Hello."}])  # type: ignore[typeddict-item]
    assert other.conversations.retrieve(conversation.id) == conversation
    first = client.responses.create(**asked("How is it in Paris?", conversation=conversation.id))
    assert first.conversation is not None
    assert first.conversation.id == conversation.id
    (tool_call,) = [item for item in first.output if item.type == "function_call"]
    result: Any = [{"type": "function_call_output", "call_id": tool_call.call_id, "output": "7 degrees"}]
    for _ in range(2):
        then = other.responses.create(
            **asked(result, conversation={"id": conversation.id}, background=True),
            extra_headers={"Idempotency-Key": conversation.id},
        )
        assert ended(other, then.id).output_text == "It is cold."
    items = list(client.conversations.items.list(conversation.id, order="asc", limit=2))
    assert [item.type for item in items] == [
        *("message", "message", "reasoning", "message", "function_call"),
        *("function_call_output", "message"),
    ]
    last = items[-1]
    assert other.conversations.items.retrieve(last.id or "", conversation_id=conversation.id) == last
    other.conversations.items.delete(last.id or "", conversation_id=conversation.id)
    extra = client.conversations.items.create(conversation.id, items=[{"role": "user", "content": "1 more, please."}])  # type: ignore[typeddict-item]
    assert [item.id for item in client.conversations.items.list(conversation.id).data][:2] == [
        extra.data[0].id,
        items[-2].id,
    ]
    assert client.conversations.update(conversation.id, metadata={"c": "d"}).metadata == {"c": "d"}
    with client.responses.stream(**asked("And?", conversation=conversation.id)) as stream:
        assert stream.get_final_response().usage.input_tokens > first.usage.input_tokens  # type: ignore[union-attr]
    assert len(list(client.conversations.items.list(conversation.id))) == 9
    assert client.conversations.delete(conversation.id).deleted
    with pytest.raises(openai.NotFoundError):
        other.conversations.retrieve(conversation.id)


def test_a_page_of_long_items_ends_before_its_limit(client: OpenAI) -> None:
    """The page costs what a page costs, however long its conversation; the official client fetches the next itself."""
    conversation = client.conversations.create()
    for name in "abc":
        content: Any = [{"role": "user", "content": name * 4_000_000} for _ in range(2)]
        client.conversations.items.create(conversation.id, items=content)
    page = client.conversations.items.list(conversation.id, limit=100, order="asc")
    assert (len(page.data), page.has_more) == (2, True)
    texts = [item.content[0].text[:1] for item in client.conversations.items.list(conversation.id, limit=100)]  # type: ignore[union-attr]
    assert texts == ["c", "c", "b", "b", "a", "a"]
    client.conversations.delete(conversation.id)


def test_a_conversation_in_which_a_response_is_being_made_is_locked_at_every_replica(
    served: Stack, client: OpenAI, other: OpenAI
) -> None:
    """The error is in OpenAI's words; the response, of no live replica, is ended by hand."""
    conversation = client.conversations.create()
    with Redis.from_url(served.redis_url) as redis:
        redis.hset(f"{served.deployment}:kept:running", "owner", "nobody")
        redis.hset(f"{served.deployment}:conversation:{conversation.id}", "busy", f"{served.deployment}:kept:running")
        for replica in (client, other):
            with pytest.raises(openai.BadRequestError) as exc_info:
                replica.responses.create(**asked("Hello.", conversation=conversation.id))
            assert (exc_info.value.code, exc_info.value.param) == ("conversation_locked", "conversation")
            with pytest.raises(openai.BadRequestError, match="Another response"):
                replica.conversations.items.create(conversation.id, items=[{"role": "user", "content": "1"}])  # type: ignore[typeddict-item]
        redis.hset(f"{served.deployment}:kept:running", "end", "ended")
    assert other.responses.create(**asked("Hello.", conversation=conversation.id)).output_text


def test_a_prompt_is_counted_and_a_conversation_made_short(client: OpenAI, served: Stack) -> None:
    question = asked("How is it in Paris?")
    response = client.responses.create(**question)
    assert response.usage is not None
    count = client.responses.input_tokens.count(**question)
    assert count.input_tokens == response.usage.input_tokens
    short = client.responses.compact(model="mock", input="Tell me of Paris.", previous_response_id=response.id)
    assert [item.type for item in short.output] == ["message", "message", "compaction"]
    back: Any = [*short.model_dump(exclude_none=True, warnings=False)["output"], {"role": "user", "content": "1 more"}]
    assert client.responses.create(**asked(back)).output_text == "All of it."
    assert short.usage.output_tokens > 0


def test_what_is_too_long_is_truncated_if_asked(client: OpenAI) -> None:
    """The oldest goes first; rules stay."""
    rules = {"role": "developer", "content": "rules"}
    items: Any = [
        rules,
        *({"role": "user", "content": "word " * 500} for _ in range(40)),
        {"role": "user", "content": "1 more"},
    ]
    with pytest.raises(openai.BadRequestError) as exc_info:
        client.responses.create(**asked(items))
    assert exc_info.value.code == "context_length_exceeded"
    response = client.responses.create(**asked(items, truncation="auto"))
    assert (response.output_text, response.truncation) == ("All of it.", "auto")


def test_a_call_goes_on_though_its_worker_is_killed_in_the_middle(served: Stack, client: OpenAI, other: OpenAI) -> None:
    """The call is made in the background, at a conversation; it is the same at every replica, and is there once."""
    conversation = client.conversations.create()
    response = client.responses.create(**asked("Tell me at length.", background=True, conversation=conversation.id))
    arguments, victim = "", 0
    events = []
    for event in other.responses.retrieve(response.id, stream=True):
        events.append(event)
        if event.type == "response.function_call_arguments.delta":
            arguments += event.delta
        if len(arguments) > 60 and not victim:
            busy: Any = wait_until(
                lambda: next((lease for lease in leases(served, POOL) if lease.load.running), None), "one runs it"
            )
            victim = busy.worker.pid
            os.kill(victim, signal.SIGKILL)
    assert victim
    assert json.loads(arguments) == {"city": LONG}
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert len([event for event in events if event.type == "response.output_item.added"]) == 2
    assert events[-1].type == "response.completed"
    assert events[-1].response == client.responses.retrieve(response.id)
    assert [item.type for item in client.conversations.items.list(conversation.id, order="asc").data] == [
        *("message", "reasoning", "function_call"),
    ]
    served.worker(name="w3")
    wait_until(lambda: len(leases(served, POOL)) == 2, "two workers again", 60)


def test_codex_gets_an_answer_and_a_call_to_what_it_sends(served: Stack) -> None:
    """Its requests, recorded once (codex_exec 0.169.0), with shorter prompts."""
    bodies = json.loads((Path(__file__).parent / "codex_requests.json").read_text())
    for body, kind in zip(bodies, ("function_call", "message"), strict=True):
        answer = httpx.post(f"{served.url}/v1/responses", json=body, timeout=60)
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
        assert events[-1]["type"] == "response.completed", events[-1]
        assert [item["type"] for item in events[-1]["response"]["output"]][-1] == kind


def test_a_conversation_is_said_once_though_the_replica_dies(served: Stack, second: str, other: OpenAI) -> None:
    """Its answer is adopted by the other replica, which goes on with the call and says it."""
    with client_of(served.url) as client:
        conversation = client.conversations.create()
        response = client.responses.create(**asked("Tell me at length.", background=True, conversation=conversation.id))
        stream = iter(client.responses.retrieve(response.id, stream=True))
        while next(stream).type != "response.function_call_arguments.delta":
            pass
        served.names["api"].kill()
    whole = ended(other, response.id)
    assert json.loads(whole.output[-1].arguments) == {"city": LONG}
    items = other.conversations.items.list(conversation.id, order="asc").data
    assert [item.type for item in items] == ["message", "reasoning", "function_call"]
    assert [item.id for item in items[1:]] == [item.id for item in whole.output]
