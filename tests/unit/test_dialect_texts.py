"""Parsing of the texts that models write: `dialect_texts.json`, also of models that break their own notation.

Each text has its `reasoning`, its `content`, and its `calls`: name, and arguments as an object, or as a text where they
are no JSON. `broken`: not all calls are whole. `begun`, `over`: the prompt ended within reasoning, or behind it.
"""

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from app.dialects.families import DIALECTS
from app.dialects.output_parser import OutputParser
from tests.dialect_parts import calls, texts

TEXTS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("dialect_texts.json").read_text())


def tool(**types: Any) -> dict[str, Any]:
    return {"properties": {name: {"type": of} for name, of in types.items()}}


TOOLS: dict[str, Any] = {
    "run": tool(code="string", lang="string"),
    "get_weather": tool(city="string", days="integer"),
    "add": tool(a="number", b="number"),
    "cfg": tool(o="object", l="array", f="boolean", n=["string", "null"]),
    "noargs": tool(),
}
MANY = 20  # random ways to cut a text
SIZES = range(1, 24)


def taken_apart(case: dict[str, Any], pieces: Iterable[str]) -> tuple[str, str, list[tuple[str, str]], bool]:
    """Reasoning, content, name and arguments of each call, and whether one of them is broken."""
    has_begun, over = case.get("begun", False), case.get("over", False)
    parser = OutputParser(DIALECTS[case["dialect"]], TOOLS, begun=has_begun, over=over)
    parts = [part for piece in pieces for part in parser.feed(piece)] + parser.close()
    return *texts(parts), calls(parts), bool(parser.unfinished)


def read(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


@pytest.mark.parametrize("case", TEXTS, ids=lambda case: f"{case['dialect']}-{case['title']}")
def test_a_text_is_taken_apart(case: dict[str, Any]) -> None:
    reasoning, content, own_calls, is_broken = taken_apart(case, [case["text"]])
    assert (reasoning, content) == (case.get("reasoning", ""), case.get("content", ""))
    assert [[name, read(arguments)] for name, arguments in own_calls] == case.get("calls", [])
    assert is_broken == case.get("broken", False)


@pytest.mark.parametrize("case", TEXTS, ids=lambda case: f"{case['dialect']}-{case['title']}")
def test_a_text_is_taken_apart_in_the_same_way_however_it_is_cut(case: dict[str, Any]) -> None:
    """A text is cut in two at each place, into characters, and at random: slow readers and deaths of workers do so."""
    text, rng = case["text"], random.Random(case["text"])
    whole = taken_apart(case, [text])
    assert taken_apart(case, text) == whole
    for at in range(1, len(text)):
        assert taken_apart(case, (text[:at], text[at:])) == whole
    for _ in range(MANY):
        cuts = sorted(rng.choices(range(len(text)), k=rng.choice(SIZES)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert taken_apart(case, pieces) == whole
