"""Reasoning is told from content, wherever the text is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.openai.output_parser import OutputParser, Parts
from app.pools import Reasoning

THINK = Reasoning(begin="<think>", end="</think>")
BEGUN = Reasoning(begin="<think>", end="</think>", begun=True)
REPEATED = Reasoning(begin="aab", end="aaab")  # whose beginnings are within themselves


def parsed(markers: Reasoning, *pieces: str) -> Parts:
    parser = OutputParser(markers)
    found = [*map(parser.feed, pieces), parser.close()]
    return Parts("".join(p.reasoning for p in found), "".join(p.content for p in found))


@pytest.mark.parametrize(
    ("markers", "text", "parts"),
    [
        (THINK, "Paris.", ("", "Paris.")),
        (THINK, "<think>Capital?</think>Paris.", ("Capital?", "Paris.")),
        (THINK, "So: <think>a</think>b<think>c</think>d", ("ac", "So: bd")),
        (THINK, "<think>cut off", ("cut off", "")),
        (THINK, "<think></think>", ("", "")),
        (THINK, "1 </think> 2 <thin", ("", "1 </think> 2 <thin")),
        (BEGUN, "Capital?</think>Paris.", ("Capital?", "Paris.")),
        (BEGUN, "never over</thi", ("never over</thi", "")),
        (REPEATED, "aaabxaaaaabyaab", ("xaa", "ay")),
    ],
)
def test_the_parts_of_a_text(markers: Reasoning, text: str, parts: tuple[str, str]) -> None:
    assert parsed(markers, text) == parts


@given(
    st.sampled_from([THINK, BEGUN, REPEATED]),
    st.lists(st.sampled_from(["<think>", "</think>", "<", "</", "th", "ink>", "a", "aa", "b", "word ", "é"])),
    st.data(),
)
def test_however_a_text_is_cut_its_parts_are_the_same(
    markers: Reasoning, pieces: list[str], data: st.DataObject
) -> None:
    text = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    cut = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parsed(markers, *cut) == parsed(markers, text) == parsed(markers, *text)


def test_no_more_than_a_marker_is_held_back() -> None:
    """A client that reads along sees each character once the next ones can't make a marker of it."""
    parser = OutputParser(THINK)
    assert parser.feed("a <thin") == ("", "a ")
    assert parser.feed("g") == ("", "<thing")
    assert parser.feed(" <think>b</") == ("b", " ")
