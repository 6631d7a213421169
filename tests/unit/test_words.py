"""Tokenising by words gives what tokenising the whole gives."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

import app
from app.tokenizing import words
from app.tokenizing.segments import Segments, independent
from app.tokenizing.words import Words, word_pattern

SPEC: dict[str, Any] = json.loads((Path(app.__file__).parent / "engines/mock/model/tokenizer.json").read_text())
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Parts of a text that the patterns above treat in ways of their own.
PARTS = (
    "I'll|don'T|'S|'|  |   x|12345| 7|1a2|...| (| and |é|“|。|ſ|\n|\r\n|\t| \n |),\n\n|\v|\x1c|\x1f|\x7f|\0|\u2028|\xa0"
)
ASCII = st.text(st.characters(max_codepoint=127), max_size=20)
TEXTS = st.lists(st.one_of(ASCII, st.text(max_size=5), st.sampled_from(re.split(r"\|", PARTS))), max_size=60).map(
    "".join
)


def _split(pattern: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, BYTES]}


# As in the tokenizer.json of GPT-2, Llama 3 and Qwen 2.5.
KNOWN = {
    "gpt2": SPEC,
    "llama3": SPEC | {"pre_tokenizer": _split(CL100K)},
    "qwen": SPEC | {"pre_tokenizer": _split(CL100K.replace("{1,3}", "")), "normalizer": {"type": "NFC"}},
}
RAW = {name: tokenizers.Tokenizer.from_str(json.dumps(spec)) for name, spec in KNOWN.items()}
SEGMENTS = {name: Segments(RAW[name], spec) for name, spec in KNOWN.items()}


def _whole(name: str, text: str) -> list[int]:
    ids: list[int] = RAW[name].encode(text, add_special_tokens=False).ids
    return ids


@pytest.mark.parametrize("name", KNOWN)
@given(TEXTS)
def test_words_make_the_ids_that_the_whole_text_makes(name: str, text: str) -> None:
    """The signs beside a letter don't matter, nor where a text is cut that isn't all ASCII."""
    segments = SEGMENTS[name]
    assert independent(KNOWN[name])
    assert segments.takes(text) is (name != "qwen" or text.isascii())
    if segments.takes(text):
        assert segments.encode(text) == _whole(name, text)


@pytest.mark.parametrize("pattern", sorted(words._KNOWN))
@given(text=TEXTS)
def test_a_text_is_cut_only_between_words(pattern: str, text: str) -> None:
    word_finder = re.compile(words._for_ascii(pattern), re.ASCII).findall
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "_PIECE", 1)
        assert [word for piece in words._pieces(text) for word in word_finder(piece)] == word_finder(text)


def test_a_text_that_is_not_ascii_has_pieces_that_are() -> None:
    text = "A “quoted” word and then " + "some others, it's 12  spaced \n\tlines.  \n" * 20
    pieces = list(words._pieces(text))
    assert [piece.isascii() for piece in pieces] == [False] + [True] * (len(pieces) - 1)
    assert len(pieces) > 2
    encode = Words(RAW["gpt2"], words._GPT2).encode
    assert encode(text) == encode(text) == _whole("gpt2", text)
    assert encode("漢字" * 1000) == _whole("gpt2", "漢字" * 1000)


@pytest.mark.parametrize(
    "pre_tokenizer",
    [
        None,
        BYTES,
        _split(r"\p{L}+|."),
        _split(CL100K) | {"pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTES]},
        {"type": "Sequence", "pretokenizers": [{**_split(CL100K)["pretokenizers"][0], "invert": True}, BYTES]},
    ],
)
def test_an_unknown_way_to_find_words_is_left_to_the_tokenizer(pre_tokenizer: dict[str, Any] | None) -> None:
    assert word_pattern({"pre_tokenizer": pre_tokenizer}) is None


def test_memory_is_bounded_and_keeps_what_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "_MOST", 10)
    raw = RAW["gpt2"]
    memory = words._Memory(raw.model)
    often = memory["often"]
    for number in range(100):
        memory[f"word{number}"]
        assert memory["often"] is often
        assert max(len(memory), len(memory._former)) <= 10
    assert "word0" not in {*memory, *memory._former}


def test_a_long_word_is_not_remembered() -> None:
    memory = words._Memory(RAW["gpt2"].model)
    assert list(memory["x" * 1000]) == _whole("gpt2", "x" * 1000)
    assert not memory


def test_no_pattern_is_left_that_python_reads_otherwise() -> None:
    for pattern in words._KNOWN:
        assert r"\p" not in words._for_ascii(pattern)
        assert re.compile(words._for_ascii(pattern), re.ASCII).pattern
