"""The events of a stream are put together from bytes; they have to be the JSON that OpenAI sends."""

import json
from typing import Any, Literal
from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk
from pydantic import TypeAdapter

from app.dialects.families import reasoning_only
from app.dispatch.answering.dispatcher import Dispatcher
from app.dispatch.answering.generation import Generation
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.models.writing import Writing
from app.ids import ApiId, RequestId
from app.messages.deltas import merge
from app.messages.events import Delta, TokenLogprob
from app.messages.job import Sampling
from app.openai import answer_types
from app.openai.chat import writer
from app.openai.chat_writer import ChatWriter
from app.openai.completion_writer import DONE, CompletionWriter
from app.openai.completions import TextWriter
from app.openai.envelope import usage
from app.openai.logprobs import TextLogprobs, chat_logprobs
from app.openai.schemas import CompletionRequest
from tests.models import model
from tests.unit.test_tools import chat

Kind = Literal["chat", "text"]
LOGPROBS = [TokenLogprob('é"', 5, -0.5, [('é"', 5, -0.5), ("\n", 6, -1.25)])]
DELTA = Delta(RequestId("r"), 0, " word", [7])
THINKS = Writing(reasoning_only("<think>", "</think>"), reasons=True)


def call(name: str = 'org/"model" é', **of_model: Any) -> Generation:
    """A real one, never entered: it sends nothing."""
    dispatcher = MagicMock(Dispatcher, api=ApiId("0a1b2c3d"), token_redis=0, hook=None, usage=None)
    plan = GenerationPlan("chatcmpl-", model(name, **of_model), [[1, 2, 3]], [Sampling(9)], timeout_s=1)
    generation = Generation(plan, dispatcher=dispatcher)
    generation.completion_tokens, generation.cached_tokens = 4, 2
    return generation


def asked(kind: Kind, of: Generation | None = None, **fields: Any) -> CompletionWriter:
    if kind == "chat":
        return ChatWriter(of or call(), chat(**fields))
    return TextWriter(of or call(), CompletionRequest.model_validate({"model": "m", "prompt": ""} | fields))


def chunks(kind: Kind = "chat", of: Generation | None = None, **options: bool) -> CompletionWriter:
    return asked(kind, of, stream=True, stream_options=options or None)


def read(event: bytes) -> Any:
    """The JSON of exactly one event."""
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2
    return json.loads(event[6:])


texts = st.text(min_size=1) | st.sampled_from(
    ['"', "\\", "\n", "\r\n", "\u2028", "é", "🙂", "\x00", "data: [DONE]\n\n"]
)
deltas = st.builds(
    Delta,
    request=st.just("r"),
    attempt=st.just(0),
    text=texts,
    tokens=st.lists(st.integers(0, 99), max_size=3),
    index=st.just(0),
    finish=st.sampled_from([None, "stop", "length"]),
    stop=st.none() | st.integers(0, 99) | texts,
    logprobs=st.sampled_from([None, [], LOGPROBS]),
)


def expected(of: Generation, kind: str, choice: int, d: Delta, **content: Any) -> dict[str, Any]:
    end = {"finish_reason": d.finish} | ({"stop_reason": d.stop} if d.finish else {})
    head = {"id": of.id, "object": kind, "created": of.created, "model": of.model.name}
    return head | {"choices": [{"index": choice, **content, **end}]}


@given(deltas, st.integers(0, 127), texts)
def test_a_chats_chunk_is_openais_whatever_the_text(d: Delta, choice: int, name: str) -> None:
    """Quotes, newlines, emoji and separators included; and the model's name is anybody's."""
    of = call(name)
    event = read(chunks("chat", of).delta(choice, d))
    content = {"delta": {"content": d.text}, "logprobs": chat_logprobs(d)}
    assert event == expected(of, "chat.completion.chunk", choice, d, **content)
    ChatCompletionChunk.model_validate(event, strict=True)


@given(deltas, st.integers(0, 127))
def test_a_text_chunk_is_openais_whatever_the_text(d: Delta, choice: int) -> None:
    """The other endpoint, the other shape."""
    of = call()
    content = {"text": d.text, "logprobs": TextLogprobs()(choice, d)}
    assert read(chunks("text", of).delta(choice, d)) == expected(of, "text_completion", choice, d, **content)


def test_the_openai_client_can_read_text_chunks() -> None:
    """Its type has a finish reason that is never null on paper, and is null in OpenAI's own streams."""
    event = read(chunks("text").delta(0, replace(DELTA, finish="stop", logprobs=LOGPROBS)))
    Completion.model_validate(event, strict=True)


@pytest.mark.parametrize("kind", ["chat", "text"])
def test_a_token_that_ends_no_character_makes_no_event(kind: Kind) -> None:
    """Unless something else is to be told with it."""
    silent = replace(DELTA, text="")
    assert chunks(kind).delta(0, silent) == b""
    assert chunks(kind).delta(0, replace(silent, finish="length"))
    assert chunks(kind).delta(0, replace(silent, logprobs=LOGPROBS))
    assert chunks(kind, continuous_usage_stats=True).delta(0, silent)


@pytest.mark.parametrize("kind", ["chat", "text"])
def test_usage_is_null_until_the_last_chunk_when_it_was_asked_for(kind: Kind) -> None:
    """The field is absent if it wasn't asked for, as OpenAI has it."""
    plain, usage_writer = chunks(kind), chunks(kind, include_usage=True)
    ends = (DELTA, replace(DELTA, finish="stop"))
    assert all("usage" not in read(plain.delta(0, d)) for d in ends)
    assert all(read(usage_writer.delta(0, d))["usage"] is None for d in ends)
    if kind == "chat":
        assert "usage" not in read(plain.opening(1))
        assert read(usage_writer.opening(1))["usage"] is None
    else:
        assert plain.opening(1) == usage_writer.opening(1) == b""


@pytest.mark.parametrize("kind", ["chat", "text"])
def test_usage_comes_with_every_chunk_when_it_is_continuous(kind: Kind) -> None:
    """The figures are those at that chunk."""
    of = call()
    chunk_writer = chunks(kind, of, include_usage=True, continuous_usage_stats=True)
    for tokens in (1, 2, 3):
        of.completion_tokens = tokens
        usage = read(chunk_writer.delta(0, DELTA))["usage"]
        assert usage == {
            "prompt_tokens": 3,
            "completion_tokens": tokens,
            "total_tokens": 3 + tokens,
            "prompt_tokens_details": {"cached_tokens": 2},
        }


@pytest.mark.parametrize("kind", ["chat", "text"])
def test_the_last_chunk_has_usage_and_no_choices_when_it_was_asked_for(kind: Kind) -> None:
    """The stream ends with [DONE] in any case."""
    of = call()
    assert chunks(kind, of).last() == DONE
    raw = chunks(kind, of, include_usage=True).last()
    event = read(raw.removesuffix(DONE))
    assert (raw.endswith(DONE), event["choices"], event["usage"]) == (True, [], usage(of))


def test_a_chat_is_opened_with_the_assistants_role() -> None:
    """Clients take the role from the first chunk of each choice."""
    event = read(chunks().opening(4).split(b"\n\n")[3] + b"\n\n")
    assert event["choices"] == [
        {"index": 3, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    ChatCompletionChunk.model_validate(event, strict=True)


def thinking(*texts: str, **options: bool) -> list[Any]:
    """The chunks of an answer of a model that thinks, whose last piece ends it."""
    chunk_writer = writer(call(writing=THINKS), chat(stream=True, stream_options=options or None))
    deltas = [replace(DELTA, text=text, finish="stop" if text is texts[-1] else None) for text in texts]
    raw = b"".join(chunk_writer.delta(0, d) for d in deltas)
    return [json.loads(event.removeprefix(b"data: ")) for event in raw.split(b"\n\n") if event]


def test_a_chats_reasoning_has_a_field_of_its_own() -> None:
    """Any part of it and of the content may come at once, with the end after it."""
    events = thinking("<think>It is", " 4.</th", "ink>Four", ".")
    for event in events:
        ChatCompletionChunk.model_validate(event, strict=True)
    assert [event["choices"][0]["delta"] for event in events] == [
        {"reasoning_content": "It is"}, {"reasoning_content": " 4."}, {"content": "Four"}, {"content": "."},
    ]  # fmt: skip
    assert [event["choices"][0]["finish_reason"] for event in events] == [None, None, None, "stop"]
    (both,) = thinking("<think>It is 4.</think>Four.")
    assert both["choices"][0]["delta"] == {"reasoning_content": "It is 4.", "content": "Four."}
    assert both["choices"][0]["finish_reason"] == "stop"


def test_a_chunk_of_reasoning_tells_the_usage_as_others_do() -> None:
    assert ["usage" in event for event in thinking("<think>a", "b")] == [False, False]
    assert [event["usage"] for event in thinking("<think>a", "b", include_usage=True)] == [None, None]
    events = thinking("<think>a", "b", include_usage=True, continuous_usage_stats=True)
    assert [event["usage"]["prompt_tokens"] for event in events] == [3, 3]


def test_a_whole_answers_reasoning_has_a_field_of_its_own() -> None:
    of = call(writing=THINKS)
    for text, reasoning, content in (("<think>a</think>b", "a", "b"), ("b", None, "b"), ("<think>a", "a", "")):
        message = writer(of, chat()).choice(0, replace(DELTA, text=text, finish="stop"))["message"]
        assert (message["reasoning_content"], message["content"]) == (reasoning, content)


@given(st.lists(st.tuples(st.integers(0, 2), deltas), max_size=12))
def test_merging_changes_no_choices_text_tokens_or_end(parts: list[tuple[int, Delta]]) -> None:
    """One delta per choice, for who is behind."""
    merged_parts = merge(parts)
    assert [c for c, _ in merged_parts] == list(dict.fromkeys(c for c, _ in parts))
    for choice, d in merged_parts:
        own = [part for c, part in parts if c == choice]
        assert d.text == "".join(p.text for p in own)
        assert d.tokens == [t for p in own for t in p.tokens]
        assert (d.finish, d.stop) == (own[-1].finish, own[-1].stop)


def test_merging_joins_logprobs_and_leaves_none_as_none() -> None:
    """An answer without logprobs gets none by merging."""
    with_logprobs = replace(DELTA, logprobs=LOGPROBS)
    assert merge([(0, with_logprobs), (0, with_logprobs)])[0][1].logprobs == LOGPROBS * 2
    assert merge([(0, DELTA), (0, DELTA)])[0][1].logprobs is None


CHUNKS: dict[Kind, TypeAdapter[Any]] = {
    "chat": TypeAdapter(answer_types.ChatCompletionChunk), "text": TypeAdapter(answer_types.TextCompletionChunk),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["chat", "text"])
def test_token_ids_are_told_where_vllm_tells_them(kind: Kind) -> None:
    """A chat's prompt beside its choices, a text completion's in each; in a stream once, at first."""
    whole = asked(kind, return_token_ids=True).answer([(0, replace(DELTA, tokens=[7, 8], finish="stop"))])
    assert whole["choices"][0]["token_ids"] == [7, 8]
    assert (whole if kind == "chat" else whole["choices"][0])["prompt_token_ids"] == [1, 2, 3]
    chunk_writer = asked(kind, return_token_ids=True, stream=True)
    raw = chunk_writer.opening(1) + chunk_writer.delta(0, replace(DELTA, text="")) + chunk_writer.delta(0, DELTA)
    events = [json.loads(event.removeprefix(b"data: ")) for event in raw.split(b"\n\n") if event]
    for event in events:
        CHUNKS[kind].validate_python(event, strict=True)
    choices = [event if kind == "chat" else event["choices"][0] for event in events]
    assert [event.get("prompt_token_ids") for event in choices] == [[1, 2, 3]] + [None] * (len(choices) - 1)
    assert [event["choices"][0].get("token_ids") for event in events][-2:] == [[7], [7]]


@pytest.mark.parametrize("kind", ["chat", "text"])
def test_what_was_not_asked_for_is_not_told(kind: Kind) -> None:
    whole = asked(kind).answer([(0, replace(DELTA, finish="stop"))])
    assert not {"prompt_token_ids", "prompt_logprobs", "token_ids"} & (whole.keys() | whole["choices"][0].keys())


@pytest.mark.parametrize("kind", ["chat", "text"])
def test_logprobs_of_the_prompt_have_vllms_shape(kind: Kind) -> None:
    """Each token has its rank, even one that is not among the likeliest."""
    logprobs = [
        None,
        TokenLogprob("b", 2, -3.0, [("a", 1, -0.5)], rank=7),
        TokenLogprob("a", 1, -0.5, [("a", 1, -0.5)]),
    ]
    whole = asked(kind, prompt_logprobs=1).answer([(0, replace(DELTA, finish="stop", prompt_logprobs=logprobs))])
    prompt_logprobs = (whole if kind == "chat" else whole["choices"][0])["prompt_logprobs"]
    likely = {"logprob": -0.5, "rank": 1, "decoded_token": "a"}
    assert prompt_logprobs == [
        None,
        {"2": {"logprob": -3.0, "rank": 7, "decoded_token": "b"}, "1": likely},
        {"1": likely},
    ]


def test_tokens_may_be_named_by_their_ids() -> None:
    """Their bytes and places in the text stay those of the text."""
    d = replace(DELTA, logprobs=LOGPROBS, finish="stop")
    (one,) = asked("chat", return_tokens_as_token_ids=True).answer([(0, d)])["choices"][0]["logprobs"]["content"]
    assert (one["token"], bytes(one["bytes"]).decode()) == ("token_id:5", 'é"')
    assert [top["token"] for top in one["top_logprobs"]] == ["token_id:5", "token_id:6"]
    (choice,) = asked("text", return_tokens_as_token_ids=True).answer([(0, d)])["choices"]
    assert choice["logprobs"]["tokens"] == ["token_id:5"]
    assert choice["logprobs"]["top_logprobs"] == [{"token_id:5": -0.5, "token_id:6": -1.25}]
