"""The text of tokens behind a prompt, wherever that ends."""

import pytest

from app.engines.token_text import TokenText, ends_within_character
from app.tokenizing.tokenizer import Tokenizer, load_tokenizer
from tests.shallow import shallow_model

TEXT = "Hello \N{CUNEIFORM SIGN A} and \N{EGYPTIAN HIEROGLYPH A001}\N{EGYPTIAN HIEROGLYPH A001}, you"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(shallow_model(), None, "file")


def test_it_begins_with_the_character_that_the_prompt_has_begun(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    within = 0
    for end in range(len(ids) + 1):
        whole = tokenizer.decode(ids[:end]).rstrip("\ufffd")
        text = "".join(map(TokenText(tokenizer.raw, ids[:end], special=False), ids[end:]))
        assert whole + text == TEXT, end
        within += ends_within_character(tokenizer.raw, ids[:end])
        assert ends_within_character(tokenizer.raw, ids[:end]) == tokenizer.decode(ids[:end]).endswith("\ufffd")
    assert within > 5


def test_a_long_prompt_that_ends_in_parts_of_characters_is_not_told(tokenizer: Tokenizer) -> None:
    part = tokenizer.encode("\N{CUNEIFORM SIGN A}", add_special_tokens=False)[:1]
    prompt = [*tokenizer.encode("secret", add_special_tokens=False) * 20, *part * 20]
    text = "".join(
        map(TokenText(tokenizer.raw, prompt, special=False), tokenizer.encode(" yes", add_special_tokens=False))
    )
    assert text.replace("\ufffd", "") == " yes"
