"""Generation of `/openapi.json`. The acceptance tests check its content."""

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from jsonschema import Draft202012Validator
from msgspec.structs import asdict
from pydantic import BaseModel, GetJsonSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema

from app.api.http.document import FAMILIES, documented
from app.api.operations.answer_types import OF_PREFILL, PoolLimits, WorkerStanding
from app.messages.lease import EngineState
from app.routing.candidates import PlaceLimits
from app.settings import Settings
from ops.docs.gaps import operations_untagged
from ops.docs.reference import openapi


async def test_making_the_document_holds_nobody_and_is_done_once() -> None:
    """Generation takes more than a second and needs no key: all streams of a replica were held up for as long."""
    go_on, waits = threading.Event(), list[bool]()

    class Slow(BaseModel):
        @classmethod
        def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> Any:
            waits.append(go_on.wait(20))
            return handler(core)

    app = documented(Settings(), title="a", version="1")

    @app.get("/slow")
    async def slow() -> Slow:
        return Slow()

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://a") as http:
        tasks = [asyncio.create_task(http.get("/openapi.json")) for _ in range(3)]
        await asyncio.sleep(0.05)
        go_on.set()
        answers = await asyncio.gather(*tasks)
        assert "/slow" in (await http.get("/openapi.json")).json()["paths"]
    assert {answer.status_code for answer in answers} == {200}
    assert waits
    assert all(waits), "nothing else went on meanwhile"
    assert len({answer.content for answer in answers}) == 1


# Routes whose good answer is no JSON: files of clients, and answers that are empty or text. One of them refuses always.
NO_JSON = {
    "GET /v1/images/{picture}", "GET /v1/videos/{video}/content", "GET /v1/files/{file}/content",
    "GET /v1/messages/batches/{message_batch}/results", "GET /metrics",
    "GET /v2/health/live", "GET /v2/health/ready", "GET /v2/models/{name}/ready",
    "GET /v2/models/{name}/versions/{version}/ready",
    "POST /v1/load_lora_adapter", "POST /v1/unload_lora_adapter", "DELETE /v1/models/{name}",
    "POST /v2/repository/models/{name}/load", "POST /v2/repository/models/{name}/unload",
}  # fmt: skip


def answers(document: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schema of each route's good answer in JSON; None: it has no JSON."""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            content = operation["responses"]["200"].get("content", {})
            yield (
                f"{method.upper()} {path}",
                content["application/json"]["schema"] if "application/json" in content else None,
            )


def says(schema: dict[str, Any], document: dict[str, Any]) -> bool:
    """Whether a schema says which fields there are."""
    if "$ref" in schema:
        component = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return schema.keys() == {"$ref"} and says(component, document)
    if "anyOf" in schema:
        return all(says(one, document) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return says(schema["items"], document)
    return bool(schema.get("properties"))


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return openapi()


def test_each_operation_is_in_one_family_and_has_an_id_that_a_client_can_call(document: dict[str, Any]) -> None:
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    assert operations_untagged(document) == [], "a router names its family: tags=[…]"
    assert {operation["tags"][0] for operation in operations} == FAMILIES.keys()
    assert [tag["name"] for tag in document["tags"]] == [*FAMILIES]
    ids = [operation["operationId"] for operation in operations]
    assert [name for name, times in Counter(ids).items() if times > 1] == []
    # A generated client has them all in one place: a verb alone says too little there.
    verbs = {"tokenize", "detokenize", "transcribe", "translate", "infer", "generate"}  # whose object is their family's
    assert [name for name in ids if not re.fullmatch("[a-z0-9]+(_[a-z0-9]+)+", name) and name not in verbs] == []


def test_each_route_that_answers_json_says_what_it_answers(document: dict[str, Any]) -> None:
    schemas = dict(answers(document))
    assert {route for route, schema in schemas.items() if schema is None} == NO_JSON
    assert [route for route, schema in schemas.items() if schema is not None and not says(schema, document)] == []
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    refusals = [answer for one in operations for status, answer in one["responses"].items() if status != "200"]
    assert all("application/json" in refusal.get("content", {"application/json": {}}) for refusal in refusals)


def test_a_structs_fields_have_the_shape_of_the_dict_that_is_answered() -> None:
    schema = TypeAdapter(WorkerStanding).json_schema()
    state = asdict(EngineState(paused="wait")) | {"takes_requests": True}
    assert Draft202012Validator(schema).is_valid(state)
    assert not Draft202012Validator(schema).is_valid(state | {"unheard_of": 1})
    assert not Draft202012Validator(schema).is_valid(state | {"asleep": "deep"})
    limits = asdict(PlaceLimits(max_queued=1))
    with_optional = Draft202012Validator(TypeAdapter(PoolLimits).json_schema())
    assert with_optional.is_valid(limits)
    assert with_optional.is_valid({name: value for name, value in limits.items() if name not in OF_PREFILL})
    assert not with_optional.is_valid({})


def test_a_route_with_a_dict_of_anything_is_one_that_says_nothing() -> None:
    app = FastAPI()

    class Shape(BaseModel):
        name: str

    @app.get("/dict")
    async def anything() -> dict[str, Any]:
        return {}

    @app.get("/nothing", response_model=None)
    async def nothing() -> Any:
        return {}

    @app.get("/both", responses={200: {"model": Shape}})
    async def both() -> dict[str, Any]:
        return {}

    @app.get("/shape")
    async def shape() -> Shape:
        return Shape(name="a")

    document = app.openapi()
    assert [route for route, schema in answers(document) if says(schema, document)] == ["GET /shape"]
