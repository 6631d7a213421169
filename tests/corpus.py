"""The public corpus of what models write, and of what has to be understood of it: canitoolcall's fixtures.

Strictly, whole and streamed: whitespace counts, and however a text is cut the result has to be the same.
"""

from collections.abc import Iterable

from canitoolcall.chunking import ChunkStrategy, split_text
from canitoolcall.fixtures import Fixture, load_fixtures
from canitoolcall.pytest_plugin import assert_conforms, family_for
from canitoolcall.results import ParsedToolCall, ParseResult

from app.dialects.dialect import Dialect
from app.dialects.families import DIALECTS
from app.dialects.output_parser import OutputParser
from app.dialects.parts import Arguments, CallBegun, Content, Reasoning

WAYS = ("char:0", "rand:1:8", "rand:2:8", "char:1")

# The corpus's names for its sub-formats, where they aren't a dialect's.
VARIANTS = {
    "glm45-newline": "glm", "glm47-compact": "glm", "glm53-compact": "glm",
    "kimi-k2-thinking": "kimi_k2", "kimi-k2-instruct": "kimi_k2", "kimi-k3-xtml": "kimi_k3",
    "llama3-json": "llama3", "llama4-pythonic": "llama4",
    "qwen3-hybrid": "qwen3", "qwen3-thinking-2507": "qwen3", "qwen3-instruct-2507": "qwen3",
}  # fmt: skip
FAMILIES = {"mistral": "mistral", "qwen3-xml": "qwen3_coder"}

FIXTURES = load_fixtures()


def dialect_of(fixture: Fixture) -> tuple[Dialect, bool]:
    """The dialect of a fixture, and whether its prompt began reasoning."""
    family = family_for(fixture)
    assert family is not None
    (reference,) = [m for m in family.reference_models if m.repo == fixture.reference_model]
    variant = str(reference.variant)
    name = FAMILIES.get(fixture.family) or VARIANTS.get(variant) or variant.replace("-", "_")
    prompt = fixture.generation_prompt
    if prompt is None:
        prompt = reference.default_generation_prompt or ""
    return DIALECTS[name], DIALECTS[name].begun(prompt)


def understood(fixture: Fixture, pieces: Iterable[str]) -> ParseResult:
    dialect, is_reasoning = dialect_of(fixture)
    tool_schemas = {tool["function"]["name"]: tool["function"].get("parameters") for tool in fixture.tools}
    parser = OutputParser(dialect, tool_schemas, begun=is_reasoning)
    parts = [part for piece in pieces for part in parser.feed(piece)] + parser.close()
    calls = [[part.name, ""] for part in parts if isinstance(part, CallBegun)]
    for part in parts:
        if isinstance(part, Arguments):
            calls[part.index][1] += part.text
    return ParseResult(
        content="".join(p.text for p in parts if isinstance(p, Content)) or None,
        reasoning_content="".join(p.text for p in parts if isinstance(p, Reasoning)) or None,
        tool_calls=tuple(ParsedToolCall(name, arguments) for name, arguments in calls),
    )


def same_however_cut(fixture: Fixture) -> bool:
    whole = understood(fixture, [fixture.raw_output])
    return all(understood(fixture, split_text(fixture.raw_output, ChunkStrategy.parse(way))) == whole for way in WAYS)


def conforms(fixture: Fixture) -> bool:
    try:
        assert_conforms(fixture, understood(fixture, [fixture.raw_output]))
    except AssertionError:
        return False
    return True
