"""The format of an answer's content: as a request's fields, and as a grammar.

Each API makes a `Format` of its own fields; from there on all are the same.
"""

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec.structs import replace
from pydantic import ConfigDict, Field

from app import json_bytes
from app.errors import RequestError
from app.messages.job import Grammar, Sampling
from app.messages.kinds import GrammarKind
from app.openai.json_schema import check_bounds, check_schema
from app.schemas.body import MOST, Body, Some
from app.schemas.neutral import Refused

Text = Annotated[str, Field(min_length=1, max_length=2**16)]
OBJECT: dict[str, Any] = {"type": "object"}


@dataclass(frozen=True)
class Format:
    """The format of content; `value` is a schema, a pattern, a list of texts, a grammar or a structural tag."""

    kind: GrammarKind
    value: Any
    where: str  # the field of the request, such as `response_format.json_schema.schema`


def content_grammar(format_: Format) -> Grammar:
    """The content's grammar, not compiled: a `GrammarCheck` does that. Raises: RequestError that names the field."""
    try:
        if format_.kind == "json":
            check_schema(format_.value)
        else:
            check_bounds(format_.value)
    except ValueError as exc:
        raise refused(format_.where, exc) from None
    plain = format_.kind in ("regex", "grammar")
    return Grammar(format_.kind, format_.value if plain else json.dumps(format_.value, ensure_ascii=False))


def with_grammar(grammar: Grammar | None, sampling: Sampling) -> Sampling:
    """Raises: RequestError for `min_tokens`: at a grammar's end, no token is allowed any more."""
    if grammar is not None and sampling.min_tokens:
        raise refused("min_tokens", "an answer with a format, or with forced calls, can't have a minimum length")
    return replace(sampling, grammar=grammar)


def refused(where: str, why: object) -> RequestError:
    return RequestError(f"'{where}': {why}.", param=where)


class JsonSchema(Body):
    model_config = ConfigDict(serialize_by_alias=True)

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")] | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class PlainFormat(Body):
    type: Literal["text", "json_object"]


class SchemaFormat(Body):
    type: Literal["json_schema"]
    json_schema: JsonSchema


class TagFormat(Body):
    """vLLM's: in xgrammar's present shape, or in its older one."""

    type: Literal["structural_tag"]
    format: dict[str, Any] | None = None
    structures: Annotated[list[dict[str, Any]], Field(max_length=MOST)] | None = None
    triggers: Some[Text] | None = None


ResponseFormat = Annotated[PlainFormat | SchemaFormat | TagFormat, Field(discriminator="type")]


class StructuredOutputs(Body):
    """vLLM's."""

    model_config = ConfigDict(serialize_by_alias=True)

    json_: Annotated[dict[str, Any] | Text | None, Field(alias="json")] = None
    regex: Text | None = None
    choice: Annotated[Some[Text], Field(min_length=1, max_length=MOST)] | None = None
    grammar: Text | None = None
    json_object: Literal[True] | None = None
    structural_tag: dict[str, Any] | Text | None = None
    disable_any_whitespace: Annotated[Literal[False] | None, Refused()] = None
    disable_additional_properties: Annotated[Literal[False] | None, Refused()] = None
    whitespace_pattern: Annotated[None, Refused()] = None


class StructuredRequest(Body):
    """The fields of chat and text completions for a format, of which at most one may be given."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | Text | None = None  # vLLM's older names
    guided_regex: Text | None = None
    guided_choice: Annotated[Some[Text], Field(min_length=1, max_length=MOST)] | None = None
    guided_grammar: Text | None = None

    @property
    def compiles(self) -> bool:
        """Whether a grammar has to be made for it, which takes milliseconds. Raises: RequestError."""
        return self.asked_format() is not None

    def asked_format(self) -> Format | None:
        """Raises: RequestError for several formats, or for invalid JSON."""
        if self.model_fields_set.isdisjoint(_FIELDS):  # nearly every request
            return None
        formats = self._formats()
        if len(formats) > 1:
            raise refused(formats[1].where, f"an answer has one format, and '{formats[0].where}' is given already")
        return formats[0] if formats else None

    def _formats(self) -> list[Format]:
        response_format, formats = self.response_format, []
        if isinstance(response_format, SchemaFormat):
            formats.append(Format("json", response_format.json_schema.schema_, "response_format.json_schema.schema"))
        elif isinstance(response_format, TagFormat):
            formats.append(Format("tag", response_format.model_dump(exclude_none=True), "response_format"))
        elif response_format is not None and response_format.type == "json_object":
            formats.append(Format("json", OBJECT, "response_format"))
        options = self.structured_outputs or StructuredOutputs()
        if options.json_object:
            formats.append(Format("json", OBJECT, "structured_outputs.json_object"))
        candidates: list[tuple[GrammarKind, Any, str]] = [
            ("json", options.json_, "structured_outputs.json"),
            ("regex", options.regex, "structured_outputs.regex"),
            ("choice", options.choice, "structured_outputs.choice"),
            ("grammar", options.grammar, "structured_outputs.grammar"),
            ("tag", options.structural_tag, "structured_outputs.structural_tag"),
            ("json", self.guided_json, "guided_json"),
            ("regex", self.guided_regex, "guided_regex"),
            ("choice", self.guided_choice, "guided_choice"),
            ("grammar", self.guided_grammar, "guided_grammar"),
        ]
        return formats + [Format(kind, _read(kind, v, where), where) for kind, v, where in candidates if v is not None]


_FIELDS = tuple(StructuredRequest.model_fields)


def _read(kind: GrammarKind, value: Any, where: str) -> Any:
    """Schemas and tags may come as JSON within a text."""
    if kind not in ("json", "tag") or not isinstance(value, str):
        return value
    try:
        doc = json_bytes.loads(value)
    except ValueError:
        raise refused(where, "it is not JSON") from None
    if not isinstance(doc, dict):
        raise refused(where, "it is not a JSON object")
    return doc
