"""Our answers, read strictly by the openai client's types; and by OpenAI's published schemas, where a copy is named.

`XYLEM_OPENAI_SPEC`: the file of OpenAI's OpenAPI document, which is in no package.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import OpenAI
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response
from openapi_schema_validator import OAS30Validator, OAS31Validator
from pydantic import TypeAdapter

_URL, _SPEC = os.environ["TEST_API_BASE_URL"], os.environ.get("XYLEM_OPENAI_SPEC")
_MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]
_TOOL = {"name": "magic_function", "parameters": {"type": "object", "properties": {"input": {"type": "integer"}}}}
_ASKS_FOR_A_CALL: list[dict[str, Any]] = [{"role": "user", "content": "What is magic_function(3)?"}]
_JSON_SCHEMA = {"name": "city", "schema": {"type": "object", "properties": {"n": {"type": "integer"}}}}

# By name: path, body, the client's type of a whole answer, and the published schema's name.
ANSWERS: dict[str, tuple[str, dict[str, Any], Any, str]] = {
    "chat": (
        "/chat/completions",
        {"messages": _MESSAGES, "n": 2, "logprobs": True, "top_logprobs": 2, "seed": 1, "service_tier": "auto"},
        ChatCompletion, "CreateChatCompletionResponse",
    ),
    "call": (
        "/chat/completions",
        {"messages": _ASKS_FOR_A_CALL, "tools": [{"type": "function", "function": _TOOL}]},
        ChatCompletion, "CreateChatCompletionResponse",
    ),
    "format": (
        "/chat/completions",
        {"messages": _MESSAGES, "response_format": {"type": "json_schema", "json_schema": _JSON_SCHEMA}},
        ChatCompletion, "CreateChatCompletionResponse",
    ),
    "text": ("/completions", {"prompt": ["a", "b"], "logprobs": 2}, Completion, "CreateCompletionResponse"),
    "response": ("/responses", {"input": "Hello"}, Response, "Response"),
    "response with a call": (
        "/responses",
        {"input": "What is magic_function(3)?", "tools": [{"type": "function", "strict": None, **_TOOL}]},
        Response, "Response",
    ),
    "embeddings": (
        "/embeddings", {"model": "embedder", "input": ["a", "b"]}, CreateEmbeddingResponse, "CreateEmbeddingResponse",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def client() -> OpenAI:
    return OpenAI(base_url=f"{_URL}/v1", api_key="none", _strict_response_validation=True)


@pytest.mark.parametrize("name", ANSWERS)
def test_a_whole_answer_is_of_the_clients_type(client: OpenAI, name: str) -> None:
    path, body, kind, _ = ANSWERS[name]
    raw = client.post(path, body={"model": "mock", **body}, cast_to=dict[str, Any])
    TypeAdapter(kind).validate_python(raw, strict=False)
    unknown = raw.keys() - kind.model_fields.keys()
    assert unknown == set(), "fields that the type does not have"


@pytest.mark.parametrize("options", [{}, {"logprobs": True}, {"n": 2}, {"stream_options": {"include_usage": True}}])
def test_each_chunk_of_a_stream_is_of_the_clients_type(client: OpenAI, options: dict[str, Any]) -> None:
    chunks = [*client.chat.completions.create(model="mock", messages=_MESSAGES, stream=True, **options)]
    assert chunks
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk.model_dump(), strict=False)


def test_each_event_of_a_streamed_response_is_of_the_clients_type(client: OpenAI) -> None:
    events = [*client.responses.create(model="mock", input="Hello", stream=True)]
    assert events[-1].type == "response.completed"


def test_models_are_of_the_clients_type(client: OpenAI) -> None:
    models = [*client.models.list()]
    assert models
    assert all(isinstance(model, Model) for model in models)


@pytest.mark.skipif(_SPEC is None, reason="XYLEM_OPENAI_SPEC names no copy of OpenAI's OpenAPI document")
@pytest.mark.parametrize("name", ANSWERS)
def test_a_whole_answer_is_of_openais_published_schema(client: OpenAI, name: str) -> None:
    path, body, _, schema = ANSWERS[name]
    document = yaml.safe_load(Path(str(_SPEC)).read_text())
    raw = client.post(path, body={"model": "mock", **body}, cast_to=dict[str, Any])
    response_schema = {"$ref": f"#/components/schemas/{schema}", "components": document["components"]}
    validator = OAS30Validator if document["openapi"].startswith("3.0") else OAS31Validator
    wrong = [f"{error.json_path}: {error.message[:200]}" for error in validator(response_schema).iter_errors(raw)]
    assert wrong == []
