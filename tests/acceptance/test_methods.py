"""HEAD where GET is, and paths with a slash at their end."""

from collections.abc import Iterator

import httpx
import pytest

from tests.acceptance.test_bad_input import CHAT, TEXT, refusal
from tests.serving import served_by
from tests.stack import Stack, mock_pool, wait_until

POOL = "decode-pool-a"
ASK = {"model": "mock", "prompt": "hello", "max_tokens": 2}
BACKGROUND = {"model": "mock", "input": "x", "background": True, "max_output_tokens": 4000, "ignore_eos": True}


served = served_by({POOL: mock_pool()})


@pytest.fixture(scope="module")
def http(served: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=20, headers={"x-request-id": "the-same"}) as client:
        yield client


def test_every_get_is_answered_to_head_too(http: httpx.Client) -> None:
    """The status and headers are the same, and there is no body: the connection goes on with the next request."""
    file = http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", b"{}" * 2**20)}).json()["id"]
    paths = [
        path for path, methods in http.get("/openapi.json", timeout=60).json()["paths"].items() if "get" in methods
    ]
    assert len(paths) > 10
    for path in (*paths, "/docs", "/openapi.json", f"/v1/files/{file}/content", "/nothing", CHAT):
        url = path.replace("{pool}", POOL).replace("{name}", "mock").replace("{file}", file)
        get_answer, head = http.get(url), http.head(url)
        assert head.content == b""
        assert (head.status_code, head.headers.keys()) == (get_answer.status_code, get_answer.headers.keys()), path
        if path != "/metrics":  # which counts this
            assert _lasting(head) == _lasting(get_answer)


def _lasting(response: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name != "date"}


def test_head_of_a_stream_does_not_wait_for_its_end(served: Stack, http: httpx.Client) -> None:
    """Nothing of the stream is read."""
    response = http.post("/v1/responses", json=BACKGROUND).json()["id"]
    head = http.head(f"/v1/responses/{response}", params={"stream": "true"})
    assert head.status_code == 200
    assert head.headers["content-type"].startswith("text/event-stream")
    assert http.get(f"/v1/responses/{response}").json()["status"] in ("queued", "in_progress")
    assert http.post(f"/v1/responses/{response}/cancel").json()["status"] == "cancelled"
    redis = served.redis
    wait_until(lambda: not redis.keys("methods:reservations:*"), "the engine is free")


@pytest.mark.parametrize("path", ["/", "/v1/models", "/live", "/docs", "/v1/files", "/v1/models/mock", "/v1/batches"])
def test_a_slash_at_the_end_changes_nothing(http: httpx.Client, path: str) -> None:
    """A redirect was the answer once: behind a proxy that ends TLS, it led to another scheme."""
    plain, slash_answer = http.get(path), http.get(f"{path}/", headers={"x-forwarded-proto": "https"})
    assert (slash_answer.status_code, slash_answer.content) == (200, plain.content)


def test_a_slash_at_the_end_of_what_generates_changes_nothing(http: httpx.Client) -> None:
    """Redirected, some clients would have sent a GET."""
    assert http.post(f"{TEXT}/", json=ASK).json()["usage"]["completion_tokens"] == 2
    assert refusal(http.get(f"{TEXT}/"), 405)
    for path in ("/nothing/", "/live//"):
        assert refusal(http.get(path), 404)
