"""Entries of the OpenAPI document about the answers of a route, where its annotation does not say it.

The types are those of the writers: see `app/schemas/answers.py`.
"""

from typing import Any

from pydantic import TypeAdapter

from app.schemas.body import inlined

Responses = dict[int | str, dict[str, Any]]
# Of a route that answers with text. Its `response_class` is Response: with another one its refusals would be text, too.
TEXT: Responses = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


def answers(answer: Any) -> Responses:
    """The `responses` of a route whose answers are written by hand."""
    return {200: {"model": answer}}


def answered(answer: Any, *events: Any, ends: str = "") -> Responses:
    """The `responses` of a route: its whole answer, and the data of its events, of which `ends` is the last.

    Schemas are inlined, since FastAPI has no place for schemas of events that it doesn't write itself.
    """
    schemas = [schema_of(event) for event in events]
    json = {"contentMediaType": "application/json", "contentSchema": {"anyOf": schemas}}
    data = {"type": "string"} | ({"anyOf": [json, {"const": ends}]} if ends else json)
    item = {"type": "object", "required": ["data"], "properties": {"data": data}}
    content = {"text/event-stream": {"itemSchema": item}}
    return {200: {"model": answer, "content": content, "description": "Whole, or as server-sent events"}}


def refused(refusal: Any) -> Responses:
    """The `responses` that say how a dialect refuses."""
    return {"default": {"model": refusal, "description": "Refused, or failed"}}


def schema_of(answer: Any) -> Any:
    """The JSON schema of a part that stands in the middle of the document."""
    return inlined(TypeAdapter(answer).json_schema(mode="serialization"))
