"""Depth of references in grammars, found without recursion."""

import json

import pytest

from app.grammars.bounds import check_counts
from app.grammars.compile import check, compiled
from app.grammars.references import check_rule_references, check_schema_references
from app.messages.job import Grammar
from app.messages.kinds import GrammarKind
from tests.hostile_grammars import CIRCLES, DEEP, RECURSIVE, any_of, chain, required, rules


@pytest.mark.parametrize("schema", DEEP.values(), ids=DEEP)
def test_schemas_of_long_chains_are_refused_before_a_compiler_gets_them(schema: dict[str, object]) -> None:
    text = json.dumps(schema)
    with pytest.raises(ValueError, match="references lead more than 500 levels deep"):
        compiled(Grammar("json", text))
    tag = json.dumps({"format": {"type": "json_schema", "json_schema": schema}})
    with pytest.raises(ValueError, match="references lead more than 500 levels deep"):
        compiled(Grammar("tag", tag))
    check_counts(schema)


@pytest.mark.parametrize(("kind", "text"), [
    ("grammar", rules(4000)),
    ("grammar", rules(4000).replace(":", " ::=").replace("start", "root")),
    ("grammar", rules(2000).replace("a", "?a").replace("st?art", "start")),
    ("grammar", rules(2000).replace("a", "A").replace("stArt", "start")),
    ("tag", json.dumps({"format": {"type": "grammar", "grammar": rules(2000).replace(":", " ::=")}})),
], ids=["rules", "EBNF", "inlined", "terminals", "tag"])  # fmt: skip
def test_rules_of_long_chains_are_refused_before_a_compiler_gets_them(kind: GrammarKind, text: str) -> None:
    with pytest.raises(ValueError, match="references lead more than 500 levels deep"):
        compiled(Grammar(kind, text))


@pytest.mark.parametrize("schema", CIRCLES.values(), ids=CIRCLES)
def test_a_reference_that_leads_back_to_its_own_place_is_refused(schema: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"'\$ref' leads back to where it stands"):
        check(Grammar("json", json.dumps(schema)))


@pytest.mark.parametrize("schema", RECURSIVE.values(), ids=RECURSIVE)
def test_a_schema_may_have_itself_within(schema: dict[str, object]) -> None:
    check(Grammar("json", json.dumps(schema)))


def test_chains_within_the_bound_compile() -> None:
    check_schema_references(chain(160, any_of))
    check(Grammar("json", json.dumps(chain(120, required))))
    check(Grammar("grammar", rules(400)))


def test_what_only_looks_like_a_rule_is_none() -> None:
    """Texts, patterns and comments have names in them; a rule may be within itself."""
    check_rule_references('start: "a0: a1" /a: b/ start? // c: d')
    check_rule_references('root ::= [":"] "x ::= y" root* # z ::= z')
    schema = {"properties": {"a": {"$ref": "other.json"}, "b": {"$ref": "#/nowhere"}, "c": {"$ref": 5}}}
    check_schema_references(schema)
