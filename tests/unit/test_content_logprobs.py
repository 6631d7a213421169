"""Logprobs of an answer with reasoning are those of its content's tokens, the same however the answer comes."""

import json
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.dialects.names import find_dialect
from app.dispatch.models.writing import Writing
from app.ids import RequestId
from app.messages.events import Delta, Done, TokenLogprob
from app.messages.kept import ResponseContext
from app.openai.chat import writer
from app.openai.responses.response_object import ResponseObject, begin_object
from app.openai.responses.schemas import ResponseRequest
from app.schemas.validation import parse
from app.tokenizing.token_names import TokenNames
from tests.models import model
from tests.unit.test_completion_writer import call
from tests.unit.test_tools import WEATHER, chat

ID = RequestId("resp_1")
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
THINKS = model(writing=Writing(find_dialect("qwen3"), reasons=True), dialect="qwen3")
ANSWERS = [
    "<think>\nHm, Paris.\n</think>\n\nIt is  Paris, 日本 and 😀.\n\nYes",
    "Plain, with a <thing> and spaces  ",
    f"<think>a</think>First.\n{CALL}\nThen more 🎉",
    "<think>only reasoning",
    f"<think>a</think>\n\n{CALL}",
    "ends in > </think>here",
    "a <b> c",
    "<tool_call>\n</tool_call>",
    "<tool_call>\n{no call that anyone reads",
    "<tool_call>\n</tool_call>\nbut this",
]


def deltas(text: str, cuts: list[int], *, shown: bool = True, lag: int = 0) -> list[Delta]:
    """`lag`: so many characters are held back, as with stop strings. `shown`: special tokens are part of the text."""
    tokenizer = THINKS.tokenizer
    tokens = tokenizer.encode(text, add_special_tokens=False)
    names = TokenNames(tokenizer)
    spellings = [names.add(token) for token in tokens]
    edges = [0, *sorted(min(cut, len(tokens)) for cut in cuts), len(tokens)]
    parts, out = [], 0
    for a, b in pairwise(edges):
        visible_end = max(out, len("".join(spellings[:b])) - lag)
        logprobs = [TokenLogprob(spellings[i], tokens[i], -float(i)) for i in range(a, b)]
        parts.append(Delta(RequestId("r"), 0, text[out:visible_end], tokens[a:b], logprobs=logprobs))
        out = visible_end
    end = [TokenLogprob("<|im_end|>", 2, 0.0)]
    return [*parts, Delta(RequestId("r"), 0, text[out:], [2], finish="stop", logprobs=end)]


def shown(text: str, logprobs: list[TokenLogprob], **fields: Any) -> Delta:
    return Delta(RequestId("r"), 0, text, [1] * len(logprobs), logprobs=logprobs, **{"finish": "stop"} | fields)


def told(shown: list[Any]) -> list[tuple[str, float]]:
    for entry in shown:
        assert entry["bytes"] == list(entry["token"].encode())
    return [(entry["token"], entry["logprob"]) for entry in shown]


def thinking_writer(**fields: Any) -> Any:
    of = call()
    of.model = THINKS
    return writer(of, chat(logprobs=True, tools=[WEATHER], **fields))


def of_chat(made: list[Delta]) -> tuple[str, list[tuple[str, float]]]:
    chat_writer = thinking_writer(stream=True)
    text, entries = "", []
    for d in made:
        if raw := chat_writer.delta(0, d):
            (choice,) = json.loads(raw.removeprefix(b"data: "))["choices"]
            text += choice["delta"].get("content", "")
            entries += told((choice["logprobs"] or {}).get("content", []))
    return text, entries


def of_whole_chat(made: list[Delta]) -> tuple[str, list[tuple[str, float]]]:
    d = made[-1]
    tokens, logprobs = [t for each in made for t in each.tokens], [lp for each in made for lp in each.logprobs or ()]
    whole = Delta(d.request, 0, "".join(each.text for each in made), tokens, 0, d.finish, None, logprobs)
    choice = thinking_writer().choice(0, whole)
    return choice["message"]["content"] or "", told(choice["logprobs"]["content"])


def begun_response() -> ResponseObject:
    fields = {"model": "m", "input": "?", "include": ["message.output_text.logprobs"]}
    tool = {"type": "function", **WEATHER["function"]}
    body = parse(ResponseRequest, json.dumps(fields | {"tools": [tool]}).encode())
    return begin_object({"m": THINKS}, ID, 1.0, body, ResponseContext())


def of_response(made: list[Delta]) -> list[tuple[str, list[tuple[str, float]]]]:
    """The text and the logprobs of each message."""
    progress = begun_response()
    for event in [*made, Done(ID, 0)]:
        progress.add(event)
    parts = [item["content"][0] for item in progress.response()["output"] if item["type"] == "message"]
    return [(part["text"], told(part["logprobs"])) for part in parts]


@pytest.mark.parametrize("text", ANSWERS)
@settings(max_examples=40)
@given(cuts=st.lists(st.integers(0, 60), max_size=20), lag=st.integers(0, 5))
def test_their_tokens_are_the_content(text: str, cuts: list[int], lag: int) -> None:
    """Streamed, whole, and in each message of a response; with whitespace, and without the end's token."""
    one = deltas(text, [])
    content, entries = of_whole_chat(one)
    assert "".join(token for token, _ in entries) == content
    parts = deltas(text, cuts, lag=lag)
    assert of_chat(parts) == (content, entries)
    messages = of_response(parts)
    assert messages == of_response(one)
    assert [entry for _, logprobs in messages for entry in logprobs] == entries
    for message_text, logprobs in messages:
        assert "".join(token for token, _ in logprobs) == message_text


def test_the_logprobs_are_those_of_the_tokens() -> None:
    """Each token keeps its own; one that is content only in part is shown with that part."""
    text = "<think>a</think>\n\nIt is Paris."
    tokens = THINKS.tokenizer.encode(text, add_special_tokens=False)
    _, entries = of_whole_chat(deltas(text, []))
    first = len(tokens) - len(entries)
    assert [logprob for _, logprob in entries] == [-float(i) for i in range(first, len(tokens))]
    assert THINKS.tokenizer.decode(tokens[first:]).endswith("It is Paris.")


@pytest.mark.parametrize("text", [
    "<think>" + "Hm, so. " * 200,
    "<think>a</think>It is so.\n" + CALL.replace("Oslo", "Oslo " * 200),
    "<think>a</think>" + " so" * 200,
], ids=["thought", "call", "content"])  # fmt: skip
def test_tokens_that_are_no_content_are_not_kept(text: str) -> None:
    """Tokens of a long thought, call or answer are kept only as far as reading the start of a call requires."""
    parts = deltas(text, list(range(1, 2000)))[:-1]
    chat_ = thinking_writer(stream=True)
    response, most = begun_response(), 0
    for d in parts:
        chat_.delta(0, d)
        response.add(d)
        for buffer in (chat_._logprobs[0], response.output._logprobs):
            most = max(most, buffer.held)
    assert most < 40 < len(parts) / 4


def test_of_a_special_token_that_is_not_in_the_text_nothing_is_told() -> None:
    """Engines leave them out of the text of models whose markers are none of them."""
    lp = [TokenLogprob(token, 1, -1.0) for token in ("<|special|>", "It", " is", "<|special|>", " so")]
    parts = [shown("It is", lp[:4], finish=None), shown(" so", lp[4:])]
    assert of_chat(parts) == ("It is so", [("It", -1.0), (" is", -1.0), (" so", -1.0)])


def test_a_token_that_is_spelled_without_its_leading_space_has_it_in_the_text() -> None:
    """Tokenizers that mark the start of a word in a token decode it alone in this way."""
    lp = [TokenLogprob(token, 1, -1.0) for token in ("It", "is", "so", ".")]
    parts = [shown("It is so.", lp)]
    assert of_chat(parts) == ("It is so.", [("It", -1.0), (" is", -1.0), (" so", -1.0), (".", -1.0)])


def test_of_a_token_that_a_stop_string_cuts_its_part_of_the_answer_has_the_logprob() -> None:
    """Joined, the tokens are the content."""
    lp = [TokenLogprob(token, 1, -1.0) for token in ("Plain", " hello", " world")]
    parts = [shown("Plain hello ", lp, stop="world")]
    assert of_chat(parts) == ("Plain hello ", [("Plain", -1.0), (" hello", -1.0), (" ", -1.0)])
    assert of_whole_chat(parts) == of_chat(parts)
    lp = [TokenLogprob(token, 1, -1.0) for token in ("It", "is", "world")]  # spelled without their own spaces
    parts = [shown("It is ", lp, stop="world")]
    assert of_chat(parts) == ("It is ", [("It", -1.0), (" is", -1.0), (" ", -1.0)])


@pytest.mark.parametrize("last", [" ", "<"])
def test_a_special_token_takes_no_logprob_of_the_last_one(last: str) -> None:
    lp = [TokenLogprob(token, 1, -float(i)) for i, token in enumerate(["It", "<|special|>", last])]
    parts = [shown("It" + last, lp)]
    assert of_chat(parts) == ("It" + last, [("It", -0.0), (last, -2.0)])


def test_what_a_stop_string_leaves_of_a_token_is_found_among_very_many_special_ones() -> None:
    """Each was compared with all behind it: seconds, in which nobody else was answered."""
    special = [TokenLogprob("<|special|>", 2, -2.0)] * 20_000
    lp = [TokenLogprob("It", 1, -1.0), *special, TokenLogprob(" world", 3, -3.0)]
    parts = [shown("It ", lp, stop="world")]
    began = time.process_time()
    assert of_chat(parts) == ("It ", [("It", -1.0), (" ", -3.0)])
    one = time.process_time() - began
    parts[0] = shown("It ", lp[-2002:], stop="world")
    began = time.process_time()
    of_chat(parts)
    assert one < 50 * (time.process_time() - began)
