"""Every response has `x-request-id`, and what a client named so is known wherever its request is."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from celery import Celery

from tests.serving import client_of, replica_of, served_by
from tests.stack import Stack, mock_pool, timeline, wait_until

POOL, IDLE_POOL = "decode-pool-a", "decode-pool-b"
TEXT, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
ASKED: dict[str, Any] = {"model": "mock", "prompt": "hello", "max_tokens": 2}
OF_CHAT: dict[str, Any] = {"model": "mock", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
OF_RESPONSE: dict[str, Any] = {"model": "mock", "input": "hello", "max_output_tokens": 16}


# One worker of the model `mock`, none of `idle`.
served = served_by(
    {POOL: mock_pool(), IDLE_POOL: mock_pool(model="idle")}, {"worker": POOL},
    XYLEM_MAX_BODY="2000", XYLEM_LOG_JSON="true",
)  # fmt: skip


@pytest.fixture(scope="module")
def locked(served: Stack) -> str:
    """A replica that wants API keys."""
    return replica_of(served, "locked", XYLEM_REQUIRE_KEYS="true", XYLEM_ADMIN_KEY="secret")


ANSWERS = [
    ("GET", "/live", None, 200),
    ("GET", "/v1/models", None, 200),
    ("GET", "/metrics", None, 200),
    ("POST", "/tokenize", {"model": "mock", "prompt": "hello"}, 200),
    ("POST", TEXT, ASKED, 200),
    ("POST", TEXT, ASKED | {"stream": True}, 200),
    ("POST", CHAT, OF_CHAT, 200),
    ("POST", CHAT, OF_CHAT | {"stream": True}, 200),
    ("POST", RESPONSES, OF_RESPONSE, 200),
    ("POST", RESPONSES, OF_RESPONSE | {"stream": True}, 200),
    ("POST", RESPONSES, OF_RESPONSE | {"store": False, "stream": True}, 200),
    ("POST", TEXT, {"model": "mock"}, 400),
    ("POST", TEXT, ASKED | {"model": "none"}, 404),
    ("POST", TEXT, ASKED | {"model": "idle"}, 503),
    ("POST", TEXT, ASKED | {"prompt": "long " * 1000}, 413),
    ("POST", "/tokenize", {"model": "mock", "prompt": "long " * 1000}, 413),
    ("GET", "/nowhere", None, 404),
    ("GET", "/v1/responses/none", None, 404),
    ("DELETE", TEXT, None, 405),
]


@pytest.mark.parametrize(("method", "path", "body", "status"), ANSWERS)
def test_every_response_is_named_by_its_client_or_by_the_server(
    served: Stack, method: str, path: str, body: dict[str, Any] | None, status: int
) -> None:
    """The name comes once: proxies and clients take the first of two."""
    for own in ("a.b_c-d:1", None):
        headers = {"x-request-id": own} if own else {}
        answer = httpx.request(method, served.url + path, json=body, headers=headers)
        assert answer.status_code == status, answer.text
        (request_id,) = answer.headers.get_list("x-request-id")
        assert request_id == own if own else len(request_id) >= 24


@pytest.mark.parametrize("path", ["/v1/models", TEXT, "/admin/pools/decode-pool-a/limits"])
def test_refusals_for_want_of_a_key_have_an_x_request_id(locked: str, path: str) -> None:
    answer = httpx.get(f"{locked}{path}", headers={"x-request-id": "mine"})
    assert answer.status_code in (401, 403)
    assert answer.headers["x-request-id"] == "mine"


@pytest.mark.parametrize(("sent", "status", "found"), [
    (b"\x16\x03\x01 nonsense\r\n\r\n", 400, ""),
    (b"GET /live HTTP/1.1\r\nX-Request-Id: mine\r\nHost: here\r\nbad header\r\n\r\n", 400, "mine"),
    (b"GET /live HTTP/1.1\r\nX-Request-Id: mine\r\nX-Long: " + 70_000 * b"x", 431, "mine"),
    (b"GET /live HTTP/1.1\r\nX-Request-Id: mine\r\nHost: here\r\n\r\nnonsense\r\n\r\n", 400, ""),
])  # fmt: skip
def test_what_is_no_http_is_named_as_well(served: Stack, sent: bytes, status: int, found: str) -> None:
    """Its name is never that of the request before it on the same connection."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
        connection.sendall(sent)
        data = b""
        while part := connection.recv(65536):
            data += part
    head = data[data.rindex(b"HTTP/1.1 ") :].partition(b"\r\n\r\n")[0].decode()
    assert head.startswith(f"HTTP/1.1 {status} ")
    (request_id,) = [line.partition(": ")[2] for line in head.lower().splitlines() if line.startswith("x-request-id")]
    assert request_id == found if found else request_id.startswith("req_")


@pytest.mark.parametrize("own", [b"", b"two words", b"x" * 129, "é".encode(), b'"; drop', b"<b>", b"a\tb"])
def test_what_may_not_stand_in_a_log_is_replaced(served: Stack, own: bytes) -> None:
    answer = httpx.get(f"{served.url}/live", headers={b"x-request-id": own})
    (request_id,) = answer.headers.get_list("x-request-id")
    assert request_id.startswith("req_")


@pytest.mark.parametrize(("path", "body"), [(TEXT, ASKED), (CHAT, OF_CHAT), (RESPONSES, OF_RESPONSE)])
@pytest.mark.parametrize("headers", [{}, {"idempotency-key": "k"}])
def test_a_request_without_an_id_is_called_as_its_answer(
    served: Stack, path: str, body: dict[str, Any], headers: dict[str, str]
) -> None:
    """The answer's id makes `/requests/{x-request-id}` tell of it.

    A request that joins another's answer has that answer's id.
    """
    headers = {name: value + path for name, value in headers.items()}
    for _ in range(2):
        answer = httpx.post(served.url + path, json=body, headers=headers)
        assert answer.headers["x-request-id"] == answer.json()["id"]
    (prompt,) = httpx.get(f"{served.url}/requests/{answer.json()['id']}").json()["prompts"]
    assert prompt["x_request_id"] == answer.json()["id"]


@pytest.mark.parametrize("resumable", [False, True])
def test_the_timeline_tells_what_the_client_calls_its_request(served: Stack, *, resumable: bool) -> None:
    """The timeline tells it while the request runs, and when it has ended."""
    body = ASKED | {"stream": True, "max_tokens": 1000, "ignore_eos": True}
    headers = {"x-request-id": "mine.1"} | ({"x-xylem-resumable": "1"} if resumable else {})
    with httpx.stream("POST", served.url + TEXT, json=body, headers=headers) as answer:
        lines = answer.iter_lines()  # to be kept: collecting it would close the connection
        line = next(line for line in lines if line.startswith("data: "))
        request = json.loads(line.removeprefix("data: "))["id"]
        running = timeline(served, request)
        assert (running["state"], running["x_request_id"]) == ("answering", "mine.1")
        assert [*lines][-2] == "data: [DONE]"
    wait_until(lambda: "outcome" in httpx.get(f"{served.url}/requests/{request}").text, "it has ended")
    assert timeline(served, request)["x_request_id"] == "mine.1"


def test_a_failure_is_logged_with_its_id(served: Stack) -> None:
    """The id is the one that the client was given."""
    for own in ("fails.1", None):
        headers = {"x-request-id": own} if own else {}
        answer = httpx.post(served.url + TEXT, json=ASKED | {"model": "idle"}, headers=headers)
        assert answer.status_code == 503
        request_id = answer.headers["x-request-id"]
        lines = [json.loads(line) for line in served.log("api").splitlines() if line.startswith("{")]
        (line,) = [line for line in lines if line.get("x_request_id") == request_id]
        assert (line["event"], line["code"]) == ("request_failed", "no_worker")


def test_the_openai_client_knows_it(served: Stack) -> None:
    with client_of(served.url) as client:
        own = client.completions.create(**ASKED, extra_headers={"x-request-id": "mine"})
        assert own._request_id == "mine"
        completion = client.completions.create(**ASKED)
        assert completion._request_id == completion.id


def test_flower_shows_the_x_request_id(served: Stack) -> None:
    """Beside the arguments, in what Celery's events say."""
    watching = Celery("watching", broker=served.redis_url)
    watching.conf.broker_transport_options = {"global_keyprefix": f"{served.deployment}:"}
    events: list[dict[str, Any]] = []
    with watching.connection_for_read() as connection, ThreadPoolExecutor(1) as threads:
        receiver = watching.events.Receiver(connection, handlers={"task-received": events.append})
        capturing = threads.submit(receiver.capture, limit=None, timeout=60, wakeup=False)

        def shown() -> bool:
            httpx.post(served.url + TEXT, json=ASKED, headers={"x-request-id": "for-flower"})
            return any(event["kwargs"] == "{'x_request_id': 'for-flower'}" for event in list(events))

        try:
            wait_until(shown, "an event shows it", 30, every_s=0.5)
        finally:
            receiver.should_stop = True
            capturing.result()
