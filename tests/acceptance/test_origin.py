"""Tests what a browser may do in the name of a web page: nothing, unless the page is ours or named in a setting."""

import shlex
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.test_bad_input import CHAT, TEXT, refusal
from tests.serving import served_by
from tests.stack import ROOT, Stack, mock_pool, stack, wait_until

POOL = "decode-pool-a"
APP, EVIL = "https://app.example", "https://evil.example"
ASK = {"model": "mock", "prompt": "hello", "max_tokens": 2}
UPLOAD: dict[str, Any] = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", b"{}")}}
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-lang",
}


# A stack on loopback, as by default; one foreign page is named.
served = served_by({POOL: mock_pool()}, XYLEM_ALLOWED_ORIGINS=APP)


@pytest.mark.parametrize("origin", [EVIL, "null", f"{APP}.evil.example", f"{APP}:8443", "http://localhost:3000", ""])
@pytest.mark.parametrize(("method", "path", "sent"), [
    ("POST", TEXT, {"json": ASK}),
    ("POST", TEXT, {"content": b"{}", "headers": {"content-type": "text/plain"}}),  # what `no-cors` lets pages send
    ("POST", "/v1/files", UPLOAD),
    ("POST", "/admin/clear_kv_blocks", {}),
    ("GET", "/v1/models", {}),
    ("GET", "/metrics", {}),
    ("OPTIONS", TEXT, {"headers": PREFLIGHT}),
])  # fmt: skip
def test_a_foreign_page_is_refused(
    http: httpx.Client, method: str, path: str, sent: dict[str, Any], origin: str
) -> None:
    """The refusal comes before anything else, and without a word that would let the page read it."""
    answer = http.request(method, path, **sent | {"headers": {"origin": origin, **sent.get("headers", {})}})
    assert refusal(answer, 403)["code"] == "origin_not_allowed"
    assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_a_page_of_the_same_origin_is_served(served: Stack, http: httpx.Client) -> None:
    """`/docs` tries endpoints out; behind a proxy that ends TLS the schemes differ."""
    for headers in ({"origin": served.url}, {"origin": "https://localhost", "host": "localhost"}):
        assert http.post(TEXT, json=ASK, headers=headers).status_code == 200
        assert http.get("/v1/models", headers=headers).status_code == 200


def test_a_named_page_may_ask_and_read(http: httpx.Client) -> None:
    """Whole, streamed and refused answers all carry what lets the page read them, and their headers."""
    origin = {"origin": APP}
    preflight = http.options(CHAT, headers=origin | PREFLIGHT)
    assert preflight.status_code == 204
    document = http.get("/openapi.json", timeout=60).json()
    methods = {method.upper() for operations in document["paths"].values() for method in operations}
    assert methods <= {*preflight.headers["access-control-allow-methods"].split(", ")}
    assert preflight.headers["access-control-allow-headers"] == PREFLIGHT["access-control-request-headers"]
    answers = [
        preflight,
        http.post(TEXT, json=ASK, headers=origin),
        http.post(TEXT, json=ASK | {"stream": True}, headers=origin),
        http.post("/v1/responses", json={"model": "mock", "input": "x", "max_output_tokens": 2}, headers=origin),
        http.get("/v1/models", headers=origin),
        http.post(TEXT, json={}, headers=origin),
        http.post(TEXT, content=b"{}", headers=origin),
        http.get("/nothing", headers=origin),
    ]
    assert [answer.status_code for answer in answers] == [204, 200, 200, 200, 200, 400, 415, 404]
    for answer in answers:
        assert answer.headers["access-control-allow-origin"] == APP
        assert answer.headers["access-control-expose-headers"] == "*"
        assert answer.headers["vary"] == "Origin"


def test_requests_without_an_origin_are_unaffected(http: httpx.Client) -> None:
    """Ordinary clients send none."""
    answer = http.post(TEXT, json=ASK)
    assert answer.status_code == 200
    assert "vary" not in answer.headers
    assert http.post("/v1/files", **UPLOAD).status_code == 200
    assert http.options(TEXT).status_code == 405


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "0.0.0.0", "10.0.0.1"])
@pytest.mark.parametrize("path", ["/live", "/v1/models", "/metrics", "/docs"])
def test_on_loopback_another_hosts_name_is_refused(http: httpx.Client, path: str, host: str) -> None:
    """A page's own name may be made to resolve to this machine, and then its requests are of the same origin."""
    assert refusal(http.get(path, headers={"host": host}), 421)["code"] == "host_not_allowed"
    headers = {"host": host, "origin": f"http://{host}"}
    assert refusal(http.post(TEXT, json=ASK, headers=headers), 421)["code"] == "host_not_allowed"


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "localhost.:80", "127.0.0.1", "127.1.2.3:9", "[::1]:8000"]
)
def test_on_loopback_its_own_names_are_served(http: httpx.Client, host: str) -> None:
    """Any port is served: it may be forwarded."""
    assert http.get("/v1/models", headers={"host": host}).status_code == 200


def test_off_loopback_hosts_are_checked_only_if_a_setting_names_them(valkey_url: str, tmp_path: Path) -> None:
    """Proxies, containers and probes use many names; foreign pages are refused all the same."""
    env = {"XYLEM_DEPLOYMENT": "elsewhere", "XYLEM_HOST": "0.0.0.0"}
    with stack(valkey_url, tmp_path, {POOL: mock_pool()}, **env) as s:
        s.api("open")
        wait_until(s.ready, "the API listens")
        models = f"{s.url}/v1/models"
        for host in ("api", "10.0.0.1:8000", "anything.example"):
            assert httpx.get(models, headers={"host": host}).status_code == 200
            assert httpx.get(models, headers={"host": host, "origin": f"https://{host}"}).status_code == 200
            assert refusal(httpx.get(models, headers={"host": host, "origin": EVIL}), 403)
    with stack(valkey_url, tmp_path, {POOL: mock_pool()}, XYLEM_ALLOWED_HOSTS="api.example", **env) as s:
        s.api("named")
        wait_until(s.ready, "the API listens")  # its own health check names 127.0.0.1
        models = f"{s.url}/v1/models"
        for host, status in (
            ("api.example", 200),
            ("API.example.:8443", 200),
            ("localhost", 200),
            ("evil.example", 421),
        ):
            assert httpx.get(models, headers={"host": host}).status_code == status


@pytest.mark.parametrize(("path", "kind"), [
    (CHAT, ""), (CHAT, "text/plain"), (CHAT, "text/plain; application/json"),
    (TEXT, "application/x-www-form-urlencoded"), (TEXT, "multipart/form-data; boundary=x"),
    ("/v1/responses", "text/plain"), ("/tokenize", "application/jsonp"),
    ("/v1/batches", "text/plain"), ("/v1/files", "text/plain"), ("/v1/files", "application/x-www-form-urlencoded"),
])  # fmt: skip
def test_a_body_of_another_type_is_refused_by_name(http: httpx.Client, path: str, kind: str) -> None:
    """A body that a page can send without a preflight is no JSON, whatever it says in it."""
    answer = http.post(path, json=ASK, headers={"content-type": kind})
    error = refusal(answer, 415)
    assert error["code"] == "unsupported_media_type"
    assert repr(kind) in error["message"]


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON", "application/vnd.api+json"])
def test_json_by_any_of_its_names_is_taken(http: httpx.Client, kind: str) -> None:
    assert http.post(TEXT, json=ASK, headers={"content-type": kind}).status_code == 200


def test_a_post_without_a_body_needs_no_type(http: httpx.Client) -> None:
    assert http.post("/admin/clear_kv_blocks").status_code == 200


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "gzip, identity"])
@pytest.mark.parametrize(("method", "path"), [
    ("POST", CHAT), ("POST", "/v1/batches"), ("POST", "/v1/files"), ("PATCH", f"/admin/pools/{POOL}/limits"),
])  # fmt: skip
def test_an_encoded_body_is_refused_as_such(http: httpx.Client, method: str, path: str, encoding: str) -> None:
    """The answer says what would be taken."""
    answer = http.request(method, path, json=ASK, headers={"content-encoding": encoding})
    error = refusal(answer, 415)
    assert encoding in error["message"]
    assert answer.headers["accept-encoding"] == "identity"
    assert http.post(TEXT, json=ASK, headers={"content-encoding": "identity"}).status_code == 200


def test_the_curl_lines_of_readme_and_guide_are_served(served: Stack) -> None:
    """The lines run as they stand there, but for the port and the model."""
    pages = ("README.md", "docs/guide/routing.md", "docs/guide/resumable.md")
    text = "".join((ROOT / page).read_text() for page in pages)
    lines = [part.partition("curl ")[2] for part in text.split("\n```sh\n") if part.startswith("curl ")]
    first, pin_line = [part.partition("}]}'")[0] + "}]}'" for part in lines]
    patch = text.partition("(`curl ")[2].partition("`)")[0]
    explain_line = text.partition("ask() { curl ")[2].partition('}"; }')[0] + '}"'
    chat_line = text.partition("chat() { curl ")[2].partition("; }\n")[0].replace('"$@"', "")
    for line in (first, pin_line, patch, explain_line, chat_line):
        here = line.replace(":8000", f":{served.port}").replace("smollm2-135m-instruct", "mock")
        command = f"curl -sS --max-time 60 -o /dev/null -w '%{{http_code}}' {here}"
        result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=90, check=False)
        assert result.stdout == "200", (shlex.split(here), result.stdout, result.stderr)
