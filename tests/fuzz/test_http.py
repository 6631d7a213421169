"""Requests made from the API's own document, right and wrong ones: each is answered, as declared, and soon.

503 and 429 would be for want of workers, of which there are enough here: none is expected. The one error of 500 and
above that a client can ask for is 504, with a `timeout` that nobody could keep.
"""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, reject
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.core.transport import Response
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from app.usage.database import UsageDatabase
from tests.fuzz.examples import examples
from tests.fuzz.fields import BODIES, Change, changes
from tests.stack import Stack, mock_pool, stack

EMBED_POOL, PAINT_POOL, HEAR_POOL = "embed-pool", "paint-pool", "hear-pool"
OTHERS = {  # models of some paths
    **dict.fromkeys(
        ("/v1/embeddings", "/v2/embed", "/v1/score", "/score", "/v1/rerank", "/v2/rerank", "/rerank"), "embedder"
    ),
    **dict.fromkeys(("/v1/images", "/v1/videos"), "painter"),
    "/v1/audio": "hearer",
}
RESPONSES = "/v1/responses"
POOL, ADMIN_POOL = "decode-pool-a", "decode-pool-b"  # with the limits that an admin may set, none would be served
SOON_S = 10.0
MOST = {"n": 3, "max_tokens": 9, "max_completion_tokens": 9, "max_output_tokens": 9, "min_tokens": 2}
RESPONSE = {"model": "mock", "input": "x", "max_output_tokens": 2, "background": True}
CHAT = {"model": "mock", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "store": True}
TEMPLATE = """{%- if tools %}{% for tool in tools %}{{ tool | tojson }}
{% endfor %}write <tool_call>{"name", "arguments"}{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}{{ call.function.arguments | tojson }}{% endfor %}<|im_end|>
{% endfor %}<|im_start|>assistant
"""
DECLARED = [status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def served(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("fuzz")
    (directory / "template.jinja").write_text(TEMPLATE)
    pools = {
        POOL: mock_pool(max_model_len=2048, step_ms=0.5) | {"chat_template": str(directory / "template.jinja")},
        ADMIN_POOL: mock_pool(model="idle"),
        EMBED_POOL: mock_pool(model="embedder") | {"task": "embed"},
        PAINT_POOL: mock_pool(model="painter") | {"task": "image"},
        HEAR_POOL: mock_pool(model="hearer") | {"task": "transcribe"},
    }
    env = {"XYLEM_DEPLOYMENT": "fuzz", "XYLEM_FILES": str(directory / "files")}
    env["XYLEM_USAGE_URL"] = f"sqlite:///{directory / 'usage.sqlite'}"
    database = UsageDatabase(env["XYLEM_USAGE_URL"])
    database.create()
    database.close()
    with stack(valkey_url, directory, pools, **env) as s:
        s.api()
        s.worker()
        others = {EMBED_POOL: "embedder", PAINT_POOL: "painter", HEAR_POOL: "hearer"}
        for pool, model in others.items():
            s.worker(pool, model)
        s.wait_ready()
        for model in others.values():
            s.wait_ready(model=model)
        yield s
        assert "Traceback" not in s.log("api")
        assert "Traceback" not in s.log("worker")
        assert s.ready()["ready"]


WITH_BODY = [
    ("post", "/v1/chat/completions", 50), ("post", "/v1/completions", 50), ("post", "/v1/responses", 50),
    ("post", "/inference/v1/generate", 30), ("post", "/v1/messages", 50), ("post", "/v1/messages/count_tokens", 30),
    ("post", "/v1/responses/input_tokens", 30), ("post", "/v1/responses/compact", 30),
    ("post", "/v1/conversations", 40), ("post", "/v1/conversations/{conversation}", 20),
    ("post", "/v1/conversations/{conversation}/items", 40), ("post", "/v1/chat/completions/{chat}", 20),
    ("post", "/v1/embeddings", 40), ("post", "/v2/embed", 20), ("post", "/v1/score", 20), ("post", "/score", 5),
    ("post", "/v2/repository/index", 20), ("post", "/v2/repository/models/{name}/load", 10),
    ("post", "/v2/repository/models/{name}/unload", 10), ("post", "/v2/rerank", 5),
    ("post", "/v1/rerank", 20), ("post", "/rerank", 5),
    ("post", "/v1/classify", 20),
    ("post", "/v1/files", 30), ("post", "/v1/batches", 30), ("post", "/v1/messages/batches", 20),
    ("post", "/tokenize", 30), ("post", "/detokenize", 30), ("patch", "/admin/pools/{pool}/limits", 30),
    ("post", "/admin/loras", 30), ("post", "/admin/loras/{name}", 20), ("post", "/v1/load_lora_adapter", 20),
    ("post", "/v1/unload_lora_adapter", 20),
    ("post", "/admin/pools/{pool}/sleep", 20), ("post", "/admin/pools/{pool}/wake", 20),
    ("post", "/admin/pools/{pool}/pause", 20), ("post", "/admin/pools/{pool}/resume", 20),
    ("post", "/admin/pools/{pool}/weights", 30), ("post", "/admin/pools/{pool}/profile", 20),
    ("post", "/admin/pools/{pool}/experts", 20), ("post", "/admin/pools/{pool}/scale_elastic_ep", 20),
    ("patch", "/admin/aliases", 20), ("post", "/admin/prefixes", 30),
    ("put", "/admin/tenants/{tenant}", 30), ("patch", "/admin/tenants/{tenant}", 20), ("post", "/admin/keys", 30),
    ("patch", "/admin/keys/{key}", 20), ("patch", "/admin/prices", 20),
    ("post", "/admin/keys/{key}/erase", 20), ("post", "/admin/tenants/{tenant}/erase", 20),
    ("post", "/admin/tenants/{tenant}/isolation", 20),
    ("post", "/v1/images/generations", 20), ("post", "/v1/images/edits", 10), ("post", "/v1/videos", 20),
    ("post", "/v1/audio/transcriptions", 20), ("post", "/v1/audio/translations", 10),
]  # fmt: skip
WITHOUT = [
    ("get", "/admin/loras", 1), ("delete", "/admin/loras/{name}", 20),
    ("get", "/admin/usage", 30), ("get", "/v1/usage", 30), ("get", "/v1/organization/usage/completions", 40),
    ("get", "/admin/fleet", 1), ("get", "/admin/fleet/prefixes", 1),
    ("get", "/admin/logs", 1), ("get", "/admin/logs/{process}", 20),
    ("get", "/admin/tenants", 1), ("get", "/admin/tenants/{tenant}", 20), ("delete", "/admin/tenants/{tenant}", 20),
    ("get", "/admin/keys", 1), ("get", "/admin/keys/{key}", 20), ("delete", "/admin/keys/{key}", 20),
    ("get", "/admin/prices", 1), ("get", "/admin/spending", 1), ("get", "/v1/spending", 1), ("get", "/admin/audit", 30),
    ("get", "/admin/prefixes", 1), ("delete", "/admin/prefixes/{prefix}", 20),
    ("get", "/admin/pools/{pool}/limits", 10), ("get", "/admin/pools/{pool}/state", 5),
    ("post", "/admin/pools/{pool}/clear_kv_blocks", 10),
    ("post", "/admin/clear_kv_blocks", 1), ("get", "/admin/aliases", 1), ("get", "/admin/erasures", 1),
    ("get", "/v1/models/{name}", 30), ("delete", "/v1/models/{name}", 10), ("get", "/requests/{request}", 30),
    ("get", "/v1/responses/{response}", 30), ("get", "/v1/responses/{response}/input_items", 30),
    ("post", "/v1/responses/{response}/cancel", 20),
    ("delete", "/v1/responses/{response}", 20), ("get", "/v1/files", 30), ("get", "/v1/files/{file}", 20),
    ("get", "/v1/files/{file}/content", 20), ("delete", "/v1/files/{file}", 10), ("get", "/v1/batches", 30),
    ("get", "/v1/batches/{batch}", 20), ("post", "/v1/batches/{batch}/cancel", 20),
    ("post", "/v1/batches/{batch}/pause", 10), ("post", "/v1/batches/{batch}/resume", 10), ("get", "/v1/models", 1),
    ("get", "/v1/messages/batches", 10), ("get", "/v1/messages/batches/{message_batch}", 5),
    ("get", "/v1/messages/batches/{message_batch}/results", 5),
    ("post", "/v1/messages/batches/{message_batch}/cancel", 5), ("delete", "/v1/messages/batches/{message_batch}", 5),
    ("get", "/v1/chat/completions", 30), ("get", "/v1/chat/completions/{chat}", 20),
    ("post", "/v1/chat/completions/{chat}/cancel", 10),
    ("get", "/v1/chat/completions/{chat}/messages", 20), ("delete", "/v1/chat/completions/{chat}", 10),
    ("get", "/v1/conversations/{conversation}", 20), ("get", "/v1/conversations/{conversation}/items", 30),
    ("get", "/v1/conversations/{conversation}/items/{item}", 20),
    ("delete", "/v1/conversations/{conversation}/items/{item}", 10), ("delete", "/v1/conversations/{conversation}", 10),
    ("get", "/v1/images/{picture}", 10), ("get", "/v1/videos", 10), ("get", "/v1/videos/{video}", 10),
    ("get", "/v1/videos/{video}/content", 10), ("delete", "/v1/videos/{video}", 10),
    ("get", "/v2", 1), ("get", "/v2/health/live", 1), ("get", "/v2/health/ready", 1),
    *(
        (method, f"/v2/models/{{name}}{version}{what}", 10)
        for version in ("", "/versions/{version}")
        for method, what in (
            ("get", ""), ("get", "/ready"), ("post", "/infer"), ("post", "/generate"), ("post", "/generate_stream"),
        )
    ),
    *(("get", f"/v2/models/{name}stats", 5) for name in ("", "{name}/", "{name}/versions/{version}/")),
    ("get", "/", 5), ("get", "/live", 1), ("get", "/ready", 1),
    ("get", "/health", 1), ("get", "/metrics", 1), ("get", "/sd", 1), ("get", "/version", 1),
]  # fmt: skip


def test_every_operation_of_the_document_is_tried(served: Stack) -> None:
    paths = httpx.get(f"{served.url}/openapi.json", timeout=20).json()["paths"]
    assert {(m, path) for path, methods in paths.items() for m in methods} == {
        (m, path) for m, path, _ in WITH_BODY + WITHOUT
    }


@pytest.mark.parametrize(("method", "path", "count"), WITH_BODY + WITHOUT)
def test_a_right_request_is_answered_as_declared(served: Stack, method: str, path: str, count: int) -> None:
    """The answer is in time. It may refuse what no schema says: a model that isn't there, a prompt that is too long."""
    _try(served, method, path, count, GenerationMode.POSITIVE)


@pytest.mark.parametrize(("method", "path", "count"), WITH_BODY)
def test_a_wrong_request_is_answered_as_declared(served: Stack, method: str, path: str, count: int) -> None:
    """The answer is in time and, if it is a refusal, in its API's shape."""
    _try(served, method, path, count, GenerationMode.NEGATIVE)


@pytest.mark.parametrize("path", BODIES)
def test_a_request_with_one_changed_value_is_answered_or_refused(served: Stack, path: str) -> None:
    """Whole: nothing in it fails only when it is run, written or kept."""
    assert httpx.post(f"{served.url}{path}", json=BODIES[path], timeout=SOON_S).status_code == 200

    @examples(40, suppress_health_check=list(HealthCheck))
    @given(change=st.sampled_from([*changes(BODIES[path])]), kept=st.booleans())
    def each(change: Change, kept: bool) -> None:
        body = change.body | ({"store": kept} if path == RESPONSES and change.place != "store" else {})
        answer = httpx.post(f"{served.url}{path}", content=json.dumps(body), timeout=SOON_S)
        assert answer.status_code < 500 or answer.status_code == 504, (change, answer.text)
        if change.place != "stream":
            length = int(answer.headers.get("inference-header-content-length", len(answer.content)))
            assert json.loads(answer.content[:length]), "behind it may be KServe's raw bytes"
        if path == RESPONSES and kept and answer.status_code == 200:
            stored_answer = httpx.get(f"{served.url}{path}/{answer.json()['id']}", timeout=SOON_S)
            assert (stored_answer.status_code, stored_answer.json()) == (200, answer.json())

    each()


def _try(served: Stack, method: str, path: str, count: int, mode: GenerationMode) -> None:
    operation = schemathesis.openapi.from_url(f"{served.url}/openapi.json")[path][method]
    cases = operation.as_strategy(generation_mode=mode)

    @examples(count, suppress_health_check=list(HealthCheck))
    @given(data=st.data(), reachable=st.integers(0, 7))
    def each(data: st.DataObject, reachable: int) -> None:
        case = _drawn(data, cases)
        if reachable:
            _within_reach(case, served.url)
        response = case.call(timeout=SOON_S)
        case.validate_response(response, checks=DECLARED)
        assert _in_order(response), case.as_curl_command()

    each()


def _drawn(data: st.DataObject, cases: st.SearchStrategy[Case]) -> Case:
    try:
        return data.draw(cases)
    except ValueError as exc:
        if "Unsupported type: 'Binary'" not in str(exc):  # schemathesis asks jsonschema-rs about a file it has changed
            raise
        reject()


def _within_reach(case: Case, url: str) -> None:
    """Fills in what is there, an answer that is short enough to wait for, and fields that go together."""
    for name in case.path_parameters or {}:
        case.path_parameters[name] = _there(name, url) or case.path_parameters[name]
    body = case.body
    if isinstance(body, dict) and "input_file_id" in body:
        body["input_file_id"] = _there("file", url)
    if not isinstance(body, dict) or "model" not in body:
        return
    body["model"] = next((model for path, model in OTHERS.items() if case.path.startswith(path)), "mock")
    logprobs = ("include", ["message.output_text.logprobs"]) if "input" in body else ("logprobs", True)
    for name, value in (("stream_options", ("stream", True)), ("top_logprobs", logprobs)):
        if body.get(name) is not None:
            body.update([value])
    for name, most in MOST.items():
        if isinstance(body.get(name), int) and body[name] > most:
            body[name] = most
    for name in ("tokens", "prompt"):
        if name in body:
            body[name] = _known_tokens(body[name])
    body.pop("logit_bias", None)
    body.pop("routing", None)


def _there(kind: str, url: str) -> str | None:
    """Something of that kind that the API knows."""
    if kind == "pool":
        return ADMIN_POOL
    if kind == "response":
        answer = httpx.post(f"{url}/v1/responses", json=RESPONSE)
    elif kind == "file":
        answer = httpx.post(f"{url}/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", b"{}")})
    elif kind == "conversation":
        answer = httpx.post(f"{url}/v1/conversations", json={})
    elif kind == "chat":
        answer = httpx.post(f"{url}/v1/chat/completions", json=CHAT)
    elif kind == "batch":
        body = {"input_file_id": _there("file", url), "endpoint": "/v1/responses", "completion_window": "24h"}
        answer = httpx.post(f"{url}/v1/batches", json=body)
        if answer.status_code == 429:  # so many have not ended, as nobody runs them here
            return str(httpx.get(f"{url}/v1/batches", params={"limit": 1}).json()["data"][0]["id"])
    else:
        return None
    return str(answer.json()["id"])


def _known_tokens(prompt: Any) -> Any:
    if isinstance(prompt, list):
        return [_known_tokens(part) for part in prompt[:8]]
    return prompt % 1000 if isinstance(prompt, int) else prompt


def _in_order(response: Response) -> bool:
    if response.status_code < 400 or not response.content:  # a model that isn't ready
        return True
    body = json.loads(response.content)
    error = body["error"]
    if isinstance(error, str):  # the Open Inference Protocol's
        return body.keys() == {"error"} and response.status_code < 500
    if body.keys() == {"type", "error", "request_id"}:  # Anthropic's
        return set(error) == {"type", "message"} and (response.status_code < 500 or error["type"] == "timeout_error")
    return set(error) == {"message", "type", "param", "code"} and (
        response.status_code < 500 or error["code"] == "deadline_exceeded"
    )
