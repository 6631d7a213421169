"""Functions' schemas as clients have them compile in both libraries, or are refused by name.

`bfcl`: some of the Berkeley Function Calling Leaderboard's (bfcl-eval, Apache-2.0), without descriptions.
`own`: with more of JSON Schema.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from app.dialects.families import DIALECTS
from app.errors import RequestError
from app.openai.answer_grammar import Situation
from tests.contract.test_xgrammar import Xgrammar
from tests.unit.test_answer_grammar import grammar

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

CORPUS: dict[str, list[dict[str, Any]]] = json.loads(Path(__file__).with_name("function_schemas.json").read_text())
# A way to write arguments each: JSON, Gemma's, Python's, and one by one in two ways.
FAMILIES = ["qwen3", "gemma4", "llama4", "qwen3_coder", "deepseek_v4"]


@pytest.fixture(scope="module")
def xgrammar() -> Xgrammar:
    return Xgrammar()


def refusal(xgrammar: Xgrammar, name: str, schema: dict[str, Any], *, strict: bool) -> str:
    """The part of a tool with this schema that can't be forced; "": it can."""
    tool = {"type": "function", "function": {"name": "f", "parameters": schema, "strict": strict}}
    try:
        tool_grammar = grammar(Situation(DIALECTS[name]), tools=[tool], tool_choice="required")
    except RequestError as error:
        return str(error.param)
    xgrammar.compile(tool_grammar)
    return ""


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_functions_of_the_leaderboard_can_be_forced(xgrammar: Xgrammar, name: str, strict: bool) -> None:
    assert {refusal(xgrammar, name, schema, strict=strict) for schema in CORPUS["bfcl"]} == {""}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_other_schemas_can_be_forced_or_are_refused_with_their_place(
    xgrammar: Xgrammar, name: str, strict: bool
) -> None:
    refusals = [param for schema in CORPUS["own"] if (param := refusal(xgrammar, name, schema, strict=strict))]
    assert set(refusals) == {"tools.0.function.parameters"}
    assert len(refusals) <= (8 if strict else 2)
