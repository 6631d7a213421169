"""Tokenising by segments gives what tokenising the whole gives."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import app
from app.tokenizing.segments import independent
from app.tokenizing.tokenizer import load_tokenizer

MODEL = Path(app.__file__).parent / "engines/mock/model"
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
PIECES = st.one_of(st.sampled_from(SPECIAL), st.text(max_size=30), st.sampled_from(("user\n", " ", "\n", "<|im_")))


@given(st.lists(PIECES, max_size=12).map("".join))
def test_segments_make_the_ids_that_the_whole_text_makes(text: str) -> None:
    """Special tokens may stand in what a user wrote, or be cut short."""
    tokenizer = load_tokenizer(MODEL)
    whole = tokenizer.raw.encode_batch_fast([text], add_special_tokens=False)[0].ids
    assert tokenizer.encode(text, add_special_tokens=False) == whole


def test_a_long_segment_is_encoded_and_not_remembered() -> None:
    """Documents would push the turns of conversations out."""
    tokenizer = load_tokenizer(MODEL)
    text = "A long document. " * 1000
    whole = tokenizer.raw.encode_batch_fast([text], add_special_tokens=False)[0].ids
    assert tokenizer.encode(text, add_special_tokens=False) == whole
    assert tokenizer._segments is not None
    before = tokenizer._segments._remembered.cache_info().currsize
    tokenizer.encode(text + "x", add_special_tokens=False)
    assert tokenizer._segments._remembered.cache_info().currsize == before


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "NFKC"}},
        {"pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "first"}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}},
        {"added_tokens": []},
    ],
)
def test_tokenizers_that_look_beyond_a_segment_are_used_whole(change: dict[str, object]) -> None:
    """A Llama 2, a T5: what they do at the beginning of a text they don't do in the middle."""
    token = {"content": "<s>", "id": 1, "lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    spec = {"normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}} | {
        "added_tokens": [token]
    }
    assert independent(spec)
    assert not independent(spec | change)
