"""Each field of a request in each dialect, null, unknown, huge and of another type: taken, or refused by its name."""

import json
from typing import Any

import pytest

from app.anthropic.schemas import MessagesRequest
from app.errors import RequestError
from app.kserve.requests import GenerateBody, InferBody
from app.openai.cohere_embeddings import CohereEmbeddingRequest
from app.openai.responses.schemas import ResponseRequest
from app.openai.schemas import ChatRequest, CompletionRequest
from app.openai.token_generation import GenerateRequest
from app.schemas.validation import parse
from tests.fuzz.fields import BODIES, Change, changes

# A value may be wrong only together with another one, which the error names instead: by a part of their names.
TOGETHER = (
    ("id", "tool_call_id"), ("id", "tool_use_id"), ("call_id", "call_id"), ("content", "tool_use_id"),
    ("type", "role"), ("tool_calls", "tool_call_id"), ("messages", "messages"), ("prompt", "prompt"),
    ("tools", "tool_choice"), ("tool_choice", "tool_choice"), ("logprobs", "top_logprobs"), ("include", "top_logprobs"),
    ("inputs", "texts"), ("use_beam_search", "top_p"),
)  # fmt: skip
# The Open Inference Protocol's errors name parameters without what they are in, and inputs by their own names.
OWN_NAMES = (("parameters.", ""), ("inputs.0.", "text_input."), ("inputs.0.", "inputs."), ("outputs.0.", "outputs."))


def understand(path: str, raw: bytes) -> None:
    """Parses a body as its endpoint does without a model. Raises: RequestError."""
    schemas: dict[str, Any] = {
        "/v1/chat/completions": ChatRequest, "/v1/completions": CompletionRequest, "/v1/responses": ResponseRequest,
        "/v1/messages": MessagesRequest, "/v2/embed": CohereEmbeddingRequest,
    }  # fmt: skip
    if path in schemas:
        parse(schemas[path], raw).check()
        return
    if path.startswith("/inference"):
        parse(GenerateRequest, raw).as_completion()
        return
    body: InferBody | GenerateBody = parse(InferBody if path.endswith("infer") else GenerateBody, raw)
    parse(CompletionRequest, body.request("mock", "").as_openai("text")).check()


def is_named(change: Change, param: str) -> bool:
    place = change.place
    if change.unknown and not change.is_free:
        return param == place
    if f"{param}.".startswith(f"{place}.") or (change.is_free and place.startswith(param)):
        return True
    causes, names = place.split("."), param.split(".")
    return any(cause in causes and other in names for cause, other in TOGETHER)


def is_named_by_kserve(change: Change, param: str) -> bool:
    places = [other + change.place.removeprefix(name) for name, other in OWN_NAMES if change.place.startswith(name)]
    if change.place == "parameters":  # whatever it is now
        return True
    return is_named(change, param) or any(place.startswith(param) or param.startswith(place) for place in places)


@pytest.mark.parametrize("path", BODIES)
def test_a_request_with_one_changed_value_is_understood_or_refused_by_its_name(path: str) -> None:
    """Nulls count as not given; a field that nobody knows is refused, whatever it is beside."""
    understand(path, json.dumps(BODIES[path]).encode())
    wrong, is_right_param = [], is_named_by_kserve if path.startswith("/v2/models") else is_named
    for change in changes(BODIES[path]):
        try:
            understand(path, json.dumps(change.body).encode())
            if change.unknown and change.value is not None and not change.is_free:
                wrong.append(f"{change.place}: taken")
        except RequestError as exc:
            if change.unknown and change.value is None and not change.is_free:
                wrong.append(f"{change.place}=null: {exc.message}")
            elif not is_right_param(change, exc.param or ""):
                wrong.append(f"{change.place}={change.value!r}: {exc.message}")
    assert not wrong, "\n".join(wrong)
