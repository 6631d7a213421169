"""Triton's extensions for the model repository and statistics, over HTTP and gRPC: real processes and a mock engine."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.api.kserve.protocol import MESSAGES
from tests.acceptance.test_document import declared
from tests.acceptance.test_kserve_grpc import refused
from tests.acceptance.test_security import create
from tests.kserve import EMBED, POOL, grpc_client, kserve
from tests.stack import Stack, leases

ADMIN = {"x-api-key": "sesame"}


@pytest.fixture(scope="module")
def served(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    path = tmp_path_factory.mktemp("kserve-repository")
    with kserve(valkey_url, path, XYLEM_REQUIRE_KEYS="true", XYLEM_ADMIN_KEY="sesame") as s:
        yield s


@pytest.fixture(scope="module")
def key(served: Stack) -> dict[str, str]:
    return {"x-api-key": create(served, [served.url], "alice")}


@pytest.fixture(scope="module")
def http(served: Stack, key: dict[str, str]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=60, headers=key) as client:
        yield client


def called(s: Stack, method: str, message: Any, headers: dict[str, str], then: Any = None) -> Any:
    """The answer to a call of gRPC, or what `then` makes of it."""

    async def call() -> Any:
        async with grpc_client(s) as client:
            answer = client.call(method, message, metadata=tuple(headers.items()))
            return await (answer if then is None else then(answer))

    return asyncio.run(call())


def states(http: httpx.Client, **body: Any) -> dict[str, str]:
    index = http.post("/v2/repository/index", **({"json": body} if body else {})).json()
    return {one["name"]: one["state"] + one["reason"] for one in index}


def asleep(s: Stack, pool: str) -> bool:
    (lease,) = leases(s, pool)
    return bool(lease.state.asleep)


def test_a_model_is_unloaded_and_loaded_over_http(served: Stack, http: httpx.Client) -> None:
    """Its worker sleeps and wakes; the other model's does not."""
    assert states(http) == {"embedder": "READY", "mock": "READY"}
    # As tritonclient sends it.
    answer = http.post(
        "/v2/repository/models/mock/unload", json={"parameters": {"unload_dependents": False}}, headers=ADMIN
    )
    assert answer.status_code == 200, answer.text
    assert (asleep(served, POOL), asleep(served, EMBED)) == (True, False)
    assert states(http) == {"embedder": "READY", "mock": "UNAVAILABLEits workers sleep"}
    assert states(http, ready=True) == {"embedder": "READY"}
    assert http.get("/v2/models/mock/ready").status_code == 503
    assert http.post("/v2/repository/models/mock/load", json={}, headers=ADMIN).status_code == 200
    assert not asleep(served, POOL)
    assert http.post("/v2/models/mock/generate", json={"text_input": "a"}).status_code == 200


def test_a_model_is_unloaded_and_loaded_over_grpc(served: Stack, key: dict[str, str]) -> None:
    def ready() -> list[str]:
        index = called(served, "RepositoryIndex", MESSAGES["RepositoryIndexRequest"](ready=True), key)
        return [one.name for one in index.models]

    unload = MESSAGES["RepositoryModelUnloadRequest"](model_name="mock")
    unload.parameters["unload_dependents"].bool_param = False  # as tritonclient sends it
    load = MESSAGES["RepositoryModelLoadRequest"](model_name="mock")
    called(served, "RepositoryModelUnload", unload, ADMIN)
    assert asleep(served, POOL)
    assert ready() == ["embedder"]
    called(served, "RepositoryModelLoad", load, ADMIN)
    assert not asleep(served, POOL)
    assert ready() == ["embedder", "mock"]
    load.parameters["config"].string_param = "{}"
    code, why = called(served, "RepositoryModelLoad", load, ADMIN, refused)
    assert (code.name, "config" in why) == ("INVALID_ARGUMENT", True)


def test_only_admins_load_and_unload_and_it_is_noted(served: Stack, http: httpx.Client, key: dict[str, str]) -> None:
    assert http.post("/v2/repository/models/mock/unload").status_code == 403
    assert http.post("/v2/repository/models/mock/load", headers={"x-api-key": "no"}).status_code == 403
    assert httpx.post(f"{served.url}/v2/repository/index").status_code == 401
    for verb in ("Load", "Unload"):
        message = MESSAGES[f"RepositoryModel{verb}Request"](model_name="mock")
        assert called(served, f"RepositoryModel{verb}", message, key, refused)[0].name == "PERMISSION_DENIED"
    assert not asleep(served, POOL)
    unknown = MESSAGES["RepositoryModelLoadRequest"](model_name="nothing")
    assert called(served, "RepositoryModelLoad", unknown, ADMIN, refused)[0].name == "NOT_FOUND"
    answer = http.post("/v2/repository/models/nothing/load", headers=ADMIN)
    assert (answer.status_code, "'nothing'" in answer.json()["error"]) == (404, True)
    entries = http.get("/admin/audit", headers=ADMIN).json()["data"]
    records = [(one["action"], one["target"], one["outcome"]) for one in entries]
    for action in ("/v2/repository/models/{name:path}/load", "/inference.GRPCInferenceService/RepositoryModelLoad"):
        assert (f"POST {action}", "nothing", "model_not_found") in records
    assert not any(outcome == "forbidden" for *_, outcome in records)


def test_statistics_count_answers_failures_and_their_time(
    served: Stack, http: httpx.Client, key: dict[str, str]
) -> None:
    """The same over HTTP and gRPC, as far as gRPC's messages have it."""

    def shown(path: str) -> dict[str, Any]:
        (stats,) = http.get(path).json()["model_stats"]
        return dict(stats)

    before = shown("/v2/models/mock/stats")
    assert http.post("/v2/models/mock/generate", json={"text_input": "a", "max_tokens": 30}).status_code == 200
    late = {"text_input": "a", "max_tokens": 1500, "ignore_eos": True, "timeout": 200_000}
    assert http.post("/v2/models/mock/generate", json=late).status_code == 504
    after = shown("/v2/models/mock/versions/1/stats")
    assert after["inference_count"] == before["inference_count"] + 1
    assert after["last_inference"] > before["last_inference"]
    growth = {
        name: {part: after["inference_stats"][name][part] - stat[part] for part in ("count", "ns")}
        for name, stat in before["inference_stats"].items()
    }
    assert growth["success"]["count"] == growth["fail"]["count"] == 1
    assert growth["fail"]["ns"] >= 2e8
    assert 0 < growth["compute_infer"]["ns"] <= growth["success"]["ns"] + growth["fail"]["ns"]
    stats = called(served, "ModelStatistics", MESSAGES["ModelStatisticsRequest"](name="mock"), key).model_stats[0]
    assert (stats.inference_count, stats.last_inference) == (after["inference_count"], after["last_inference"])
    assert stats.inference_stats.fail.ns == after["inference_stats"]["fail"]["ns"]


def test_statistics_and_index_are_as_the_document_says(http: httpx.Client) -> None:
    statistics, index = http.get("/v2/models/stats").json(), http.post("/v2/repository/index").json()
    assert [one["name"] for one in statistics["model_stats"]] == ["embedder", "mock"]
    document = http.get("/openapi.json").json()
    declared(document, "/v2/models/stats", "get").validate(statistics)
    declared(document, "/v2/repository/index", "post").validate(index)
    assert {"model_repository", "statistics"} <= {*http.get("/v2").json()["extensions"]}
    assert http.get("/v2/models/nothing/stats").status_code == 404
