"""Logprobs in OpenAI's two shapes."""

from math import nan

from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.chat_completion import ChoiceLogprobs
from openai.types.completion_choice import Logprobs

from app.ids import RequestId
from app.messages.events import Delta, TokenLogprob
from app.openai.logprobs import TextLogprobs, chat_logprobs
from tests.present import present

TOP = [(" a", 1, -0.25), ("é", 2, -2.0)]


def delta(*tokens: str, top: list[tuple[str, int, float]] | None = None, logprob: float = -0.25) -> Delta:
    logprobs = [TokenLogprob(t, 1, logprob, TOP if top is None else top) for t in tokens]
    return Delta(RequestId("r"), 0, "".join(tokens), [1] * len(tokens), logprobs=logprobs)


def test_none_are_shown_where_none_were_asked_for() -> None:
    """Null, in both shapes."""
    plain = Delta(RequestId("r"), 0, "x", [1])
    assert chat_logprobs(plain) is None
    assert TextLogprobs()(0, plain) is None


def test_a_chats_logprobs_have_the_bytes_of_each_token() -> None:
    """Bytes tell what text can't when a token ends within a character."""
    logprobs, e_acute = chat_logprobs(delta("é")), {"token": "é", "bytes": [0xC3, 0xA9]}
    top = [{"token": " a", "logprob": -0.25, "bytes": [32, 97]}, e_acute | {"logprob": -2.0}]
    assert logprobs == {"content": [e_acute | {"logprob": -0.25, "top_logprobs": top}], "refusal": None}
    ChoiceLogprobs.model_validate(logprobs, strict=True)


def test_a_chat_without_alternatives_has_an_empty_list() -> None:
    """`logprobs: true` alone asks for the chosen token only."""
    logprobs = present(chat_logprobs(delta("a", top=[])))
    assert logprobs["content"][0]["top_logprobs"] == []


def test_a_texts_logprobs_are_four_parallel_lists() -> None:
    """Token, logprob, alternatives, offset."""
    logprobs = TextLogprobs()(0, delta("ab", "c"))
    assert logprobs == {
        "tokens": ["ab", "c"],
        "token_logprobs": [-0.25, -0.25],
        "top_logprobs": [{" a": -0.25, "é": -2.0} | {token: -0.25} for token in ("ab", "c")],
        "text_offset": [0, 2],
    }
    Logprobs.model_validate(logprobs, strict=True)


def test_without_alternatives_each_token_is_its_own() -> None:
    """`logprobs: 0` asks for the chosen tokens, as at OpenAI and vLLM."""
    logprobs = present(TextLogprobs()(0, delta("ab", top=[])))
    assert logprobs["top_logprobs"] == [{"ab": -0.25}]


def test_a_token_that_nothing_predicts_has_null_for_its_logprob() -> None:
    """The first one of an echoed prompt. JSON has no NaN."""
    logprobs = present(TextLogprobs()(0, delta("a", top=[], logprob=nan)))
    assert (logprobs["token_logprobs"], logprobs["top_logprobs"]) == ([None], [None])


@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.text(max_size=4), max_size=3)), max_size=8))
def test_offsets_count_each_choices_characters_across_chunks(parts: list[tuple[int, list[str]]]) -> None:
    """Streamed or whole, with the chunks of several choices mixed."""
    shape, so_far = TextLogprobs(), {0: "", 1: "", 2: ""}
    for choice, tokens in parts:
        logprobs = present(shape(choice, delta(*tokens)))
        for token, offset in zip(tokens, logprobs["text_offset"], strict=True):
            assert offset == len(so_far[choice])
            so_far[choice] += token
