"""Logprobs spell tokens so that they are the text when they are joined, also where a character is several tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engines.mock.vocabulary import Vocabulary
from app.pools.schema import Pool
from app.tokenizing.token_names import TokenNames
from app.tokenizing.tokenizer import load_tokenizer

TOKENIZER = load_tokenizer(Pool(model="mock", engine="mock").model_dir)
VOCABULARY = Vocabulary(TOKENIZER)
TEXTS = ["Well 😀🎉, ok", "日本語 and 👩‍👩‍👧", "\U0001f600", "é😀", "plain words", "\ufffd, so written 😀"]


@pytest.mark.parametrize("text", TEXTS)
def test_joined_names_are_the_text(text: str) -> None:
    """Each character comes with the token that ends it; those before have none."""
    tokens = TOKENIZER.encode(text, add_special_tokens=False)
    for names in (TokenNames(TOKENIZER), VOCABULARY.names()):
        spellings = [names.add(token) for token in tokens]
        assert "".join(spellings) == text
    assert len(tokens) > len(text.split())


def test_a_token_that_could_be_next_is_spelled_as_if_it_were() -> None:
    *first, last = TOKENIZER.encode("😀", add_special_tokens=False)
    (word,) = TOKENIZER.encode(" the", add_special_tokens=False)
    names = TokenNames(TOKENIZER)
    assert (names.of(first[0]), names.of(word)) == ("", " the")
    for token in first:
        assert names.add(token) == ""
    assert (names.of(last), names.of(word)) == ("😀", " the")
    assert names.add(last) == "😀"
    assert names.of(last) == ""


BROKEN = [token for token in range(TOKENIZER.vocab_size) if TOKENIZER.token_text(token).endswith("\ufffd")]


@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1) | st.sampled_from(BROKEN), max_size=40))
def test_whatever_follows_a_broken_character_names_go_on(tokens: list[int]) -> None:
    """A bias can bring any token; what is no character is shown as one that is unknown."""
    names = TokenNames(TOKENIZER)
    joined_names = "".join(names.add(token) for token in tokens)
    text = TOKENIZER.decode(tokens, skip_special_tokens=False)
    assert joined_names.replace("\ufffd", "") == text.replace("\ufffd", "")
