"""The content hook and the content log, with real processes: who is asked about what, and what goes on without them."""

import base64
import json
import re
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import httpx
import openai
import pytest

from app.ids import TenantId
from app.tenants.records import Tenant
from app.webhooks.signature import signature
from tests.acceptance.test_bad_input import refusal
from tests.batching import TEXT, answered, lines_of
from tests.belongings import Holder, keep_tenant
from tests.serving import begin, client_of
from tests.stack import Stack, free_port, mock_pool, stack, wait_until

SECRET = "whsec_" + base64.b64encode(b"a secret of the operator").decode()
TEXTS = "decode-pool-a"
SAID = "An unusual sentence about herons."


class Inspector(ThreadingHTTPServer):
    """The operator's server."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Inspect)
        self.asked: list[dict[str, Any]] = []
        self.heads: list[tuple[Any, bytes]] = []
        self.reply: Callable[[dict[str, Any]], Any] = lambda _: {"allow": True}

    def about(self, part: str) -> list[dict[str, Any]]:
        return [one for one in self.asked if one["part"] == part]


class _Inspect(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Inspector

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["content-length"]))
        self.server.asked.append(json.loads(raw))
        self.server.heads.append((self.headers, raw))
        reply = self.server.reply(self.server.asked[-1])
        status, body = reply if isinstance(reply, tuple) else (200, json.dumps(reply).encode())
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def listening() -> Iterator[Inspector]:
    with Inspector() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def inspector(listening: Inspector) -> Inspector:
    listening.asked.clear()
    listening.heads.clear()
    listening.reply = lambda _: {"allow": True}
    return listening


OPEN_PORT, QUIET_PORT = free_port(), free_port()
OPEN, QUIET = (f"http://127.0.0.1:{port}" for port in (OPEN_PORT, QUIET_PORT))


@pytest.fixture(scope="module")
def served(valkey_url: str, listening: Inspector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Replicas whose hook fails closed, fails open, and that have none; two tenants, one of which agreed to logs."""
    path = tmp_path_factory.mktemp("hook")
    pools = {TEXTS: mock_pool(), "embed-pool": {"model": "vectors", "engine": "mock", "task": "embed"}}
    hook = {
        "XYLEM_HOOK_URL": f"http://127.0.0.1:{listening.server_port}/inspect", "XYLEM_HOOK_SECRET": SECRET,
    }  # fmt: skip
    env = {"XYLEM_DEPLOYMENT": path.name, "XYLEM_REQUIRE_KEYS": "true", "XYLEM_LOG_JSON": "true"}
    with stack(valkey_url, path, pools, **env) as s:
        keep_tenant(s, Tenant(TenantId("agreed"), content_logged=True))
        keep_tenant(s, Tenant(TenantId("silent")))
        s.api(**hook, XYLEM_HOOK_TIMEOUT_S="10")
        s.api("open", port=OPEN_PORT, **hook, XYLEM_HOOK_FAIL="open", XYLEM_HOOK_TIMEOUT_S="0.5")
        s.api("quiet", port=QUIET_PORT)
        s.worker("batch", "batch", **hook, XYLEM_HOOK_TIMEOUT_S="10")
        begin(s)
        for url in (OPEN, QUIET):
            s.wait_ready(url=url)
        yield s
        for name in s.names:
            assert "Traceback" not in s.log(name)


@pytest.fixture(scope="module")
def client(served: Stack) -> Holder:
    return Holder(served, "sam", "silent", (OPEN, QUIET))


def test_a_prompt_is_shown_to_the_hook_with_its_request_and_an_answer_with_its_text(
    client: Holder, inspector: Inspector
) -> None:
    """Signed as the webhook's calls are."""
    answer = client.chat(SAID)
    (prompt,), (inspection,) = inspector.about("prompt"), inspector.about("answer")
    who = {
        "request": answer.id, "tenant": "silent", "key": "sam", "model": "mock", "endpoint": "/v1/chat/completions",
    }  # fmt: skip
    assert {name: prompt[name] for name in who} == {name: inspection[name] for name in who} == who
    assert prompt["body"]["messages"] == [{"role": "user", "content": SAID}]
    assert inspection["answers"] == [answer.choices[0].message.content]
    for headers, raw in inspector.heads:
        stamp = int(headers["webhook-timestamp"])
        assert abs(time.time() - stamp) < 60
        assert headers["webhook-signature"] == signature(SECRET, headers["webhook-id"], stamp, raw)


CALL = {"type": "function_call", "call_id": "c", "name": "tell", "arguments": json.dumps({"what": SAID})}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "done"}
SCHEMA = {"type": "json_schema", "name": "told", "schema": {"const": SAID}}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": SAID}]}


def heron(asked: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(asked.get("body", asked.get("answers")))
    return {"allow": "herons" not in text, "reason": "no herons"}


@pytest.mark.parametrize(("path", "body"), [
    ("/v1/chat/completions", {"model": "mock", "messages": [{"role": "user", "content": SAID}]}),
    ("/v1/chat/completions", {"model": "mock", "messages": [{"role": "user", "content": SAID}], "stream": True}),
    ("/v1/completions", {"model": "mock", "prompt": ["fish", SAID]}),
    ("/v1/responses", {"model": "mock", "input": SAID}),
    ("/v1/responses", {"model": "mock", "input": SAID, "store": False}),
    ("/v1/responses", {"model": "mock", "input": "fish", "instructions": SAID}),
    ("/v1/responses", {"model": "mock", "input": [CALL, RESULT, {"role": "user", "content": "fish"}]}),
    ("/v1/responses", {"model": "mock", "input": [THOUGHT, {"role": "user", "content": "fish"}], "store": False}),
    ("/v1/responses", {"model": "mock", "input": "fish", "text": {"format": SCHEMA}}),
    ("/v1/embeddings", {"model": "vectors", "input": [SAID]}),
    ("/v2/embed", {"model": "vectors", "texts": [SAID]}),
    ("/v1/score", {"model": "vectors", "text_1": SAID, "text_2": "fish"}),
    ("/v1/rerank", {"model": "vectors", "query": "fish", "documents": [SAID]}),
    ("/v2/models/mock/generate", {"text_input": SAID, "max_tokens": 4}),
])  # fmt: skip
def test_a_refused_prompt_is_refused_at_every_endpoint_with_the_hooks_reason(
    client: Holder, inspector: Inspector, path: str, body: dict[str, Any]
) -> None:
    inspector.reply = heron
    answer = client.call("POST", path, json=body)
    if path.startswith("/v2/models"):
        assert (answer.status_code, "no herons" in answer.text) == (400, True)
    else:
        error = refusal(answer, 400)
        assert error["code"] == "content_policy_violation"
        assert "no herons" in error["message"]
    assert inspector.about("answer") == []


def test_anthropics_clients_get_its_shape(client: Holder, inspector: Inspector) -> None:
    inspector.reply = heron
    body = {"model": "mock", "max_tokens": 4, "messages": [{"role": "user", "content": SAID}]}
    answer = client.call("POST", "/v1/messages", json=body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"store": True}, {"n": 2}, {"stream": True, "store": True}])
def test_a_refused_answer_is_never_sent_not_even_its_beginning(
    client: Holder, inspector: Inspector, more: dict[str, Any]
) -> None:
    """A stream is held until the hook has seen all of it."""
    inspector.reply = lambda asked: {"allow": asked["part"] == "prompt"}
    with pytest.raises(openai.BadRequestError) as exc_info:
        list(client.chat("Tell me of rivers", **more))
    assert exc_info.value.code == "content_policy_violation"
    (inspection,) = inspector.about("answer")
    assert len(inspection["answers"]) == more.get("n", 1)
    assert all(inspection["answers"])


def test_a_stream_that_passes_is_the_same_as_without_the_hook(
    served: Stack, client: Holder, inspector: Inspector
) -> None:
    body = {
        "model": "mock", "prompt": "Tell me of rivers", "max_tokens": 30, "stream": True, "temperature": 0, "seed": 1,
        "stream_options": {"include_usage": True},
    }  # fmt: skip

    def read(url: str) -> tuple[str, Any]:
        raw = httpx.post(f"{url}/v1/completions", json=body, headers={"authorization": f"Bearer {client.token}"}).text
        chunks = [json.loads(line) for line in re.findall(r"^data: ({.*})$", raw, re.MULTILINE)]
        return "".join(c["choices"][0]["text"] for c in chunks if c["choices"]), chunks[-1]["usage"][
            "completion_tokens"
        ]

    assert read(served.url) == read(QUIET)
    assert len(inspector.about("answer")) == 1


@pytest.mark.parametrize("reply", [
    (500, b""), (204, b""), (200, b"no JSON"), (200, b"[]"), (200, b'{"allow": "yes"}'), (302, b""), "slow",
], ids=repr)  # fmt: skip
def test_a_hook_that_fails_stops_requests_or_lets_them_go_on_as_is_set(
    served: Stack, client: Holder, inspector: Inspector, reply: Any
) -> None:
    def slow(_: dict[str, Any]) -> Any:
        time.sleep(1.5)
        return {"allow": False}

    body = {"model": "mock", "prompt": "fish", "max_tokens": 2}
    own = {"authorization": f"Bearer {client.token}"}
    inspector.reply = slow if reply == "slow" else lambda _: reply
    goes_on = httpx.post(f"{OPEN}/v1/completions", json=body, headers=own, timeout=30)
    assert goes_on.status_code == 200, goes_on.text
    metrics = httpx.get(f"{OPEN}/metrics").text
    assert re.search(r'xylem_content_inspections_total\{outcome="passed_unseen",part="prompt"\} [1-9]', metrics)
    if reply != "slow":  # which is in time for this replica
        error = refusal(client.call("POST", "/v1/completions", json=body), 503)
        assert error["code"] == "content_hook_unavailable"


def test_lines_of_batches_are_inspected_and_wait_for_a_hook_that_fails(client: Holder, inspector: Inspector) -> None:
    bodies = [{"model": "mock", "prompt": prompt, "max_tokens": 2} for prompt in ("a", SAID)]
    failures = iter([(500, b"")] * 3)
    inspector.reply = lambda asked: next(failures, None) or heron(asked)
    end, _ = answered(client.openai, bodies, TEXT)
    assert (end.request_counts.completed, end.request_counts.failed) == (1, 1)
    (error_line,) = lines_of(client.openai, end.error_file_id)
    assert error_line["response"]["body"]["error"]["code"] == "content_policy_violation"
    assert {one["tenant"] for one in inspector.asked} == {"silent"}


def test_a_line_is_computed_once_however_long_the_hook_is_down(client: Holder, inspector: Inspector) -> None:
    """Its answer is kept meanwhile, for the same request."""
    failures = iter([(500, b"")] * 2)

    def reply(asked: dict[str, Any]) -> Any:
        return {"allow": True} if asked["part"] == "prompt" else next(failures, {"allow": True})

    inspector.reply = reply
    end, _ = answered(client.openai, [{"model": "mock", "prompt": "a", "max_tokens": 2}], TEXT)
    assert (end.request_counts.completed, end.request_counts.failed) == (1, 0)
    assert (len(inspector.about("prompt")), len(inspector.about("answer"))) == (1, 3)
    assert len({(one["request"], *one["answers"]) for one in inspector.about("answer")}) == 1


def test_contents_are_logged_of_tenants_that_agreed_and_of_no_others(
    served: Stack, client: Holder, inspector: Inspector
) -> None:
    """Whole and streamed, and lines of batches; not even of refused requests, or of a hook that fails."""
    ada, words = Holder(served, "ada", "agreed", (QUIET,)), "Zebras read quietly."
    with client_of(QUIET, api_key=ada.token) as quiet:  # no hook: the log alone
        fields: dict[str, Any] = {"model": "mock", "prompt": words, "max_tokens": 8, "seed": 1}
        whole = quiet.completions.create(**fields)
        chunks = list(quiet.completions.create(**fields, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    lines = wait_until(lambda: entries if len(entries := contents(served, "quiet")) == 2 else None, "two lines")
    for line, id_ in zip(lines, (whole.id, chunks[0].id), strict=True):
        assert (line["request"], line["tenant"], line["outcome"]) == (id_, "agreed", "ok")
        assert json.loads(line["body"])["prompt"] == words
        assert line["answers"] == [whole.choices[0].text]

    secret = "Nobody agreed to this."
    client.chat(secret)
    inspector.reply = lambda _: {"allow": False}
    with pytest.raises(openai.BadRequestError):
        client.chat(secret)
    inspector.reply = lambda _: (500, b"")
    with pytest.raises(openai.InternalServerError):
        client.chat(secret)
    for name in served.names:
        assert secret not in served.log(name)
        assert SAID not in served.log(name)


def contents(s: Stack, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in s.log(name).splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("event") == "content"]
