"""/openapi.json is true: what is really answered is as it says. And /docs, which shows it, needs no internet."""

import json
import re
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from app.api.api_keys import is_open, wants_admin_key
from tests.acceptance.test_bad_input import CHAT, MESSAGES, TEXT
from tests.serving import replica_of, served_by
from tests.stack import Stack, mock_pool

POOL, RESPONSES = "decode-pool-a", "/v1/responses"
HELLO: dict[str, dict[str, Any]] = {
    CHAT: {"model": "mock", "messages": MESSAGES, "max_tokens": 6},
    TEXT: {"model": "mock", "prompt": "hello", "max_tokens": 6},
    RESPONSES: {"model": "mock", "input": "hello", "max_output_tokens": 6},
}
ASKED: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {}),
    (CHAT, {"n": 2, "logprobs": True, "top_logprobs": 2, "service_tier": "flex"}),
    (CHAT, {"stop": [" "], "service_tier": "auto"}),
    (TEXT, {}),
    (TEXT, {"prompt": ["a", "b"], "echo": True, "logprobs": 2, "service_tier": "default"}),
    (TEXT, {"echo": True, "max_tokens": 0, "logprobs": 0}),
    (RESPONSES, {}),
    (RESPONSES, {"store": False, "metadata": {"a": "b"}, "user": "me", "instructions": "be brief", "top_p": 0.5}),
    (RESPONSES, {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "service_tier": "flex"}),
    (RESPONSES, {"background": True}),
]
STREAMED: list[dict[str, Any]] = [{}, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}]


served = served_by({POOL: mock_pool()})


@pytest.fixture(scope="module")
def document(http: httpx.Client) -> dict[str, Any]:
    spec: dict[str, Any] = http.get("/openapi.json", timeout=60).json()
    return spec


def declared(document: dict[str, Any], path: str, method: str, kind: str = "application/json") -> Draft202012Validator:
    """The validator of a good answer, or of the data of its events."""
    content = document["paths"][path][method]["responses"]["200"]["content"][kind]
    schema = content["schema"] if "schema" in content else content["itemSchema"]["properties"]["data"]
    for part in [schema, *schema.get("anyOf", [])]:
        schema = part.get("contentSchema", schema)
    return Draft202012Validator({**schema, "components": document["components"]})


def check(validator: Draft202012Validator, answer: dict[str, Any]) -> None:
    """Checks that the answer is as declared, and that nearly the same would not be."""
    errors = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(answer)]
    assert not errors, (answer, errors)
    assert not validator.is_valid({**answer, "unheard_of": 1})
    assert not validator.is_valid({name: value for name, value in answer.items() if name not in ("id", "type")})


@pytest.mark.parametrize(("path", "fields"), ASKED)
def test_a_whole_answer_is_as_declared(
    http: httpx.Client, document: dict[str, Any], path: str, fields: dict[str, Any]
) -> None:
    answer = http.post(path, json=HELLO[path] | fields)
    assert answer.status_code == 200, answer.text
    check(declared(document, path, "post"), answer.json())
    if path == RESPONSES and fields.get("store") is not False:
        one = f"{RESPONSES}/{answer.json()['id']}"
        check(declared(document, f"{RESPONSES}/{{response}}", "get"), http.get(one).json())
        if fields.get("background"):
            response = http.post(f"{one}/cancel").json()
            check(declared(document, f"{RESPONSES}/{{response}}/cancel", "post"), response)


@pytest.mark.parametrize("options", STREAMED)
@pytest.mark.parametrize(("path", "fields"), ASKED)
def test_the_events_of_a_stream_are_as_declared(
    http: httpx.Client, document: dict[str, Any], path: str, fields: dict[str, Any], options: dict[str, Any]
) -> None:
    """The last of them is no JSON where OpenAI's is none."""
    stream_options = {"stream_options": options} if options and path != RESPONSES else {}
    answer = http.post(path, json=HELLO[path] | fields | stream_options | {"stream": True})
    assert answer.status_code == 200, answer.text
    events = re.findall(r"^data: (.*)$", answer.text, re.MULTILINE)
    assert len(events) >= 2
    assert (events[-1] == "[DONE]") == (path != RESPONSES)
    for event in events[: -1 if path != RESPONSES else None]:
        check(declared(document, path, "post", "text/event-stream"), json.loads(event))


def test_models_and_refusals_are_as_declared(http: httpx.Client, document: dict[str, Any]) -> None:
    models = http.get("/v1/models").json()
    assert declared(document, "/v1/models", "get").is_valid(models)
    check(declared(document, "/v1/models/{name}", "get"), models["data"][0])
    error_schema = document["paths"][CHAT]["post"]["responses"]["default"]["content"]["application/json"]["schema"]
    validator = Draft202012Validator({**error_schema, "components": document["components"]})
    assert validator.is_valid(http.post(CHAT, json={}).json())
    assert not validator.is_valid({"error": "x"})


def test_each_endpoint_says_which_key_it_wants(served: Stack, document: dict[str, Any]) -> None:
    """Keys aren't asked for here, so that none has to be sent; where they are, the document says that."""
    url = replica_of(served, "locked", XYLEM_REQUIRE_KEYS="true", XYLEM_ADMIN_KEY="sesame")
    keyed_spec = httpx.get(f"{url}/openapi.json", timeout=60).json()
    for spec, optional in ((document, [{}]), (keyed_spec, [])):
        schemes = spec["components"]["securitySchemes"]
        assert all(schemes[name]["scheme"] == "bearer" for name in ("api_key", "admin_key"))
        assert {schemes[f"{name}_x"]["name"] for name in ("api_key", "admin_key")} == {"x-api-key"}
        for path, operations in spec["paths"].items():
            for operation in operations.values():
                key = "admin_key" if wants_admin_key(path) else "api_key"
                is_asked = key == "admin_key" or not is_open(path)
                ways = [{name: []} for name in (key, f"{key}_x", f"{key}_azure")]
                assert operation["security"] == ([*ways, *optional] if is_asked else [])
    assert httpx.get(f"{url}/docs/static/swagger-ui.css").status_code == 200


@pytest.mark.parametrize("page", ["/docs", "/redoc"])
def test_the_documentations_pages_load_nothing_from_elsewhere(http: httpx.Client, page: str) -> None:
    """All that a page names is served here, with or without internet."""
    html = http.get(page)
    assert html.headers["content-type"].startswith("text/html")
    matches = re.findall(
        r"""(?:src|href)\s*=\s*["']([^"']+)["']|url:\s*["']([^"']+)["']|spec-url=["']([^"']+)""", html.text
    )
    addresses = ["".join(groups) for groups in matches]
    assert len(addresses) >= 3
    for address in addresses:
        assert address.startswith("/"), address
        assert http.get(address).status_code == 200
    assert "//" not in re.sub(r"(?m)^\s*//.*$|<!--.*?-->", "", html.text)


def test_the_assets_are_only_read(http: httpx.Client) -> None:
    """Nothing else of the disk can be read."""
    assert http.post("/docs/static/swagger-ui.css").status_code == 405
    for path in ("/docs/static/../core.py", "/docs/static/%2e%2e/core.py", "/docs/static//etc/passwd", "/docs/static/"):
        assert http.get(path).status_code == 404
