"""Chats with tools: real processes, the official client, and a mock engine that plays what a model would write."""

import json
import os
import signal
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion

from app.pools.schema import Pool
from app.tokenizing.tokenizer import load_tokenizer
from tests.acceptance.test_recovery import lines
from tests.serving import replica_of, revive, served_by
from tests.stack import Stack, mock_pool, pid_of_worker

POOL = "decode-pool-a"
TOKENIZER = load_tokenizer(Pool(model="mock", engine="mock").model_dir)
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
LONG = json.dumps({"city": "Kraków " * 40})
PLAYS = {
    "in Paris": 'Let me see.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
    "in two": "<think>Both.</think>"
    + "".join(
        f'<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>'
        for city in ("Oslo", "Rome")
    ),
    "at length": f'<tool_call>\n{{"name": "get_weather", "arguments": {LONG}}}\n</tool_call>',
    "sunny": "It is sunny in Paris.",
    "restated": "<think>\nI restate Question: what is asked.\n</think>\n\nThe answer is 42 😀.\nQuestion: and then?",
}
TEMPLATE = """{%- if tools %}{% for tool in tools %}{{ tool | tojson }}
{% endfor %}write <tool_call>{"name", "arguments"}, <think> before{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}{{ call.function.arguments.city }}{% endfor %}<|im_end|>
{% endfor %}<|im_start|>assistant
"""


# The dialect is guessed from the template.
served = served_by(
    {POOL: mock_pool(step_ms=10.0, script=PLAYS) | {"chat_template": TEMPLATE}}, {"w1": POOL, "w2": POOL}
)


def asked(question: str, **fields: Any) -> dict[str, Any]:
    return {"model": "mock", "messages": [{"role": "user", "content": question}], "tools": [WEATHER]} | fields


def streamed(client: OpenAI, **fields: Any) -> ChatCompletion:
    """Returns the completion as the client's own helper puts it together."""
    with client.chat.completions.stream(**fields) as stream:
        return stream.get_final_completion()


def calls(answer: ChatCompletion) -> list[tuple[str, Any]]:
    (choice,) = answer.choices
    return [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls or []]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("question", "content", "cities"), [
    ("How is it in Paris?", "Let me see.", ["Paris"]), ("And in two others?", None, ["Oslo", "Rome"]),
])  # fmt: skip
def test_a_model_calls_tools(
    client: OpenAI, question: str, content: str | None, cities: list[str], stream: bool
) -> None:
    answer = streamed(client, **asked(question)) if stream else client.chat.completions.create(**asked(question))
    assert calls(answer) == [("get_weather", {"city": city}) for city in cities]
    choice = answer.choices[0]
    assert (choice.finish_reason, choice.message.content or None) == ("tool_calls", content)
    assert getattr(choice.message, "reasoning_content", None) == (None if content else "Both.")
    ids = [call.id for call in choice.message.tool_calls or []]
    assert len(set(ids)) == len(cities)
    assert all(id_.startswith("call_") for id_ in ids)


def test_a_tools_result_leads_to_an_answer(client: OpenAI) -> None:
    """The conversation as the client's own objects give it back."""
    first = client.chat.completions.create(**asked("How is it in Paris?")).choices[0].message
    assert first.tool_calls is not None
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "sunny"}
    messages = [{"role": "user", "content": "Is it?"}, first.model_dump(exclude_none=True), result]
    answer = client.chat.completions.create(**asked("", messages=messages)).choices[0]
    assert (answer.message.content, answer.finish_reason) == (PLAYS["sunny"], "stop")


@pytest.mark.parametrize("tools", [[WEATHER], openai.NOT_GIVEN])
@pytest.mark.parametrize("stops", [["Question:"], ["\nQuestion", "zz"], ["\n"]])
def test_a_stop_string_counts_in_content_only(client: OpenAI, tools: Any, stops: list[str]) -> None:
    """Whole, streamed, and in two choices; no token behind it is counted."""
    fields = asked("What is restated?", tools=tools, temperature=0)
    plain = client.chat.completions.create(**fields)
    content = plain.choices[0].message.content
    assert content == "The answer is 42 😀.\nQuestion: and then?"
    behind = TOKENIZER.encode(content.partition(stops[0])[2], add_special_tokens=False)
    for completion in (
        client.chat.completions.create(**fields, stop=stops),
        client.chat.completions.create(**fields, stop=stops, n=2),
        streamed(client, **fields, stop=stops, stream_options={"include_usage": True}),
    ):
        for choice in completion.choices:
            assert choice.message.content == "The answer is 42 😀." + ("\n" if stops == ["Question:"] else "")
            assert choice.finish_reason == "stop"
            assert getattr(choice, "stop_reason", stops[0]) == stops[0]  # which the helper leaves out
            assert choice.message.model_dump()["reasoning_content"] == "I restate Question: what is asked."
        assert completion.usage is not None
        assert plain.usage is not None
        # One of the tokens behind is needed, and counted, where whitespace could be that before a call.
        saved_tokens = plain.usage.completion_tokens - completion.usage.completion_tokens / len(completion.choices)
        assert saved_tokens == len(behind) + 1 - (stops == ["\n"])


def test_the_logprobs_of_an_answer_with_reasoning_are_those_of_its_content(client: OpenAI) -> None:
    """The same each time, and all bytes of the text, in chats and in Responses."""
    text = "The answer is 42 😀.\nQuestion: and then?"
    variants = set()
    for _ in range(3):
        fields = {"model": "mock", "input": "What is restated?", "temperature": 0}
        response = client.responses.create(**fields, include=["message.output_text.logprobs"])  # type: ignore[call-overload]
        part = response.output[-1].content[0]
        assert part.text == text
        variants.add(tuple((lp.token, lp.logprob, bytes(lp.bytes)) for lp in part.logprobs))
        chat = asked("What is restated?", temperature=0, tools=openai.NOT_GIVEN, logprobs=True)
        whole = client.chat.completions.create(**chat).choices[0].logprobs.content
        variants.add(tuple((lp.token, lp.logprob, bytes(lp.bytes)) for lp in whole))
        pieces = [chunk.choices[0].logprobs for chunk in client.chat.completions.create(**chat, stream=True)]
        variants.add(tuple((p.token, p.logprob, bytes(p.bytes)) for piece in pieces if piece for p in piece.content))
    (one,) = variants
    assert b"".join(raw for _, _, raw in one).decode() == text
    assert all("\ufffd" not in token for token, _, _ in one)
    texts = client.completions.create(model="mock", prompt="restated", max_tokens=60, logprobs=1).choices[0]
    assert texts.logprobs is not None
    assert texts.logprobs.tokens is not None
    text_tokens = [token for token in texts.logprobs.tokens if not token.startswith("<|")]
    assert "".join(text_tokens) == texts.text
    assert texts.logprobs.text_offset is not None
    assert texts.text[texts.logprobs.text_offset[text_tokens.index("😀")] :].startswith("😀")


def test_without_tools_the_text_is_what_the_model_wrote(client: OpenAI) -> None:
    for fields in ({"tools": openai.NOT_GIVEN}, {"tool_choice": "none"}):
        answer = client.chat.completions.create(**asked("How is it in Paris?", **fields)).choices[0]
        assert (answer.message.content, answer.message.tool_calls) == (PLAYS["in Paris"], None)


@pytest.mark.parametrize("max_tokens", [15, 40])
def test_of_a_call_that_is_cut_off_what_was_made_is_there(client: OpenAI, max_tokens: int) -> None:
    """Nothing is made up to complete it."""
    fields = asked("Tell me at length", max_tokens=max_tokens)
    whole = client.chat.completions.create(**fields).choices[0]
    pieces = [chunk.choices[0] for chunk in client.chat.completions.create(**fields, stream=True)]
    assert whole.finish_reason == pieces[-1].finish_reason == "length"
    arguments = "".join(call.function.arguments for call in whole.message.tool_calls or [])
    assert arguments == "".join(call.function.arguments for piece in pieces for call in piece.delta.tool_calls or [])
    assert LONG.startswith(arguments)
    assert len(arguments) < len(LONG)


def test_a_call_goes_on_though_its_worker_is_killed_in_the_middle(served: Stack, client: OpenAI) -> None:
    """The same call with the same id, begun once."""
    chunks = client.chat.completions.create(**asked("Tell me at length"), stream=True)
    arguments, ids, victim = "", [], 0
    for chunk in chunks:
        for call in chunk.choices[0].delta.tool_calls or []:
            assert call.function is not None
            arguments += call.function.arguments or ""
            ids += [call.id] if call.id else []
        if len(arguments) > 60 and not victim:
            victim = pid_of_worker(served, POOL, chunk.id)
            os.kill(victim, signal.SIGKILL)
        if chunk.choices[0].finish_reason:
            assert chunk.choices[0].finish_reason == "tool_calls"
    assert victim
    assert (json.loads(arguments), len(ids)) == (json.loads(LONG), 1)
    revive(served)


def test_a_call_goes_on_at_another_replica_in_its_middle(served: Stack) -> None:
    """Behind the last event that the client has, though the first replica was killed: nothing comes twice."""
    other = replica_of(served, "api2")
    body = asked("Tell me at length", stream=True)
    part = lines(f"{served.url}/v1/chat/completions", body, most=40, **{"x-xylem-resumable": "1"})
    served.names["api"].kill()
    last = part[-1].partition(" ")[0]
    rest = lines(f"{other}/v1/chat/completions", body, **{"last-event-id": last})
    chunks = [json.loads(event.partition(" ")[2]) for event in part + rest[:-1]]
    pieces = [
        call for chunk in chunks if chunk["choices"] for call in chunk["choices"][0]["delta"].get("tool_calls", [])
    ]
    assert [("id" in piece, piece["function"].get("name")) for piece in pieces[:2]] == [
        (True, "get_weather"),
        (False, None),
    ]
    assert len([piece for piece in pieces if "id" in piece]) == 1
    assert "".join(piece["function"]["arguments"] for piece in pieces) == LONG
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
