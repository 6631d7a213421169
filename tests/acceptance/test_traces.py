"""Traces of requests: real processes, a real collector over gRPC and HTTP. Engines are mocks: vLLM's own span is in
`test_vllm_traces.py`."""

import json
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.batching import answered
from tests.collector import Collector, Seen, collector
from tests.serving import client_of, replica_of, serving
from tests.stack import Stack, free_port, leases, mock_pool, wait_until

POOL, PREFILL, DECODE = "decode-pool-a", "prefill-pool-b", "decode-pool-b"
TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
SECRET = "xylophone"
ASKED: dict[str, Any] = {"model": "mock", "prompt": f"a {SECRET} plays", "max_tokens": 8, "ignore_eos": True}
OF_CHAT: dict[str, Any] = {"model": "mock", "messages": [{"role": "user", "content": SECRET}], "max_tokens": 8}
_numbers = count(0x1234567890ABCDEF)
PARENT = "b7ad6b7169203331"


def new_trace() -> str:
    return f"{time.time_ns():016x}{next(_numbers):016x}"


def traced(trace: str, flags: str = "01", **more: str) -> dict[str, str]:
    return {"traceparent": f"00-{trace}-{PARENT}-{flags}", **more}


def split_pool(role: str, model: str = "apart", **of_handoff: Any) -> dict[str, Any]:
    """Hands every prompt over, by real NIXL."""
    handoff = {"nixl": True, "block_bytes": 65536, **of_handoff}
    return {
        "role": role, "model": model, "engine": "mock", "max_model_len": 4096,
        "disagg": {"remote_tokens": 1, "remote_wait_s": 60.0}, "args": {"step_ms": 5.0, "handoff": handoff},
    }  # fmt: skip


POOLS = {
    POOL: mock_pool(step_ms=10.0),
    "vectors": {"model": "vectors", "engine": "mock", "task": "embed"},
    "idle": mock_pool(model="idle"),
    PREFILL: split_pool("prefill"),
    DECODE: split_pool("decode"),
    "prefill-other": split_pool("prefill", "refusing", layout="other"),
    "decode-other": split_pool("decode", "refusing"),
}


@pytest.fixture(scope="module")
def sink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    with collector(tmp_path_factory.mktemp("collector")) as receiver:
        yield receiver


@pytest.fixture(scope="module")
def served(valkey_url: str, tmp_path_factory: pytest.TempPathFactory, sink: Collector) -> Iterator[Stack]:
    """Two replicas with a worker of each pool; only what clients sampled is exported."""
    path = tmp_path_factory.mktemp("traces")
    env = sink.environment() | {"OTEL_TRACES_SAMPLER": "parentbased_always_off", "XYLEM_LOG_JSON": "true"}
    env |= {"XYLEM_ACCESS_LOG": "true", "XYLEM_DEPLOYMENT": "traces", "XYLEM_FILES": str(path / "store")}
    workers = {"worker": POOL, **{pool: pool for pool in ("vectors", PREFILL, DECODE)}}
    with serving(valkey_url, path, POOLS, workers, **env) as s:
        yield s


def post(s: Stack, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    return httpx.post(s.url + path, json=body, headers=headers, timeout=60)


def asked(
    s: Stack, sink: Collector, path: str, body: dict[str, Any], *, attempts: int = 0, **headers: str
) -> list[Seen]:
    """The spans of a sampled request that has at least so many attempts."""
    trace = new_trace()
    answer = post(s, path, body, **traced(trace), **headers)
    assert answer.status_code == 200, answer.text
    return sink.trace(trace, attempts=attempts)


def tree(spans: list[Seen]) -> dict[str, list[str]]:
    """The names of each span's children, in order of their beginnings, by the span's name. Names are unique here."""
    names = {span.id: span.name for span in spans}
    children: dict[str, list[str]] = {}
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        children.setdefault(names.get(span.parent, span.parent), []).append(span.name)
    return children


def one(spans: list[Seen], name: str) -> Seen:
    (match,) = [span for span in spans if span.name == name]
    return match


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_request_is_a_tree_of_its_stages_in_the_clients_trace(
    valkey_url: str, tmp_path: Path, sink: Collector, protocol: str
) -> None:
    """Either protocol carries it, at the SDK's default sampler; each stage is within its request."""
    env = sink.environment(protocol) | {"XYLEM_DEPLOYMENT": tmp_path.name, "OTEL_SERVICE_NAME": "my-gateway"}
    with serving(valkey_url, tmp_path, {POOL: mock_pool()}, {"worker": POOL}, **env) as s:
        spans = asked(s, sink, CHAT, OF_CHAT | {"seed": 7}, **{"x-request-id": "mine.1"})
        without = post(s, TEXT, ASKED)
        own = wait_until(lambda: [x for x in sink.spans if without.json()["id"] in x.attributes.values()], "its own")
    assert own[0].parent == "" or own[0].name == "attempt", "a trace that began here"
    children = tree(spans)
    assert children[PARENT] == ["chat mock"]
    assert Counter(children["chat mock"]) == Counter(["receive", "tokenise", "attempt"])
    assert children["attempt"] == ["place", "queue", "prefill", "first_token", "decode"]
    root = one(spans, "chat mock")
    assert all(root.start <= span.start <= span.end <= root.end for span in spans)
    attributes = {
        "gen_ai.operation.name": "chat", "gen_ai.request.model": "mock", "gen_ai.usage.output_tokens": 8,
        "gen_ai.request.max_tokens": 8, "gen_ai.request.seed": 7, "http.response.status_code": 200,
        "url.path": CHAT, "xylem.x_request_id": "mine.1",
    }  # fmt: skip
    assert attributes.items() <= root.attributes.items()
    assert [name for name, _ in root.events] == ["first_token"]
    (candidate,) = json.loads(one(spans, "place").attributes["xylem.candidates"])
    assert candidate["worker"] == one(spans, "decode").attributes["xylem.worker"]
    assert {"wait", "prefill", "blocks_cached"} <= candidate.keys()
    assert {span.service for span in spans} == {"my-gateway"}


def test_a_request_whose_prompt_another_worker_computes_shows_both(served: Stack, sink: Collector) -> None:
    spans = asked(served, sink, TEXT, ASKED | {"model": "apart"})
    assert set(tree(spans)["attempt"]) == {"place", "queue", "prefill", "hop", "first_token", "resume", "decode"}
    assert tree(spans)["resume"] == ["transfer"]
    pools = {span.name: span.attributes.get("xylem.pool") for span in spans}
    assert (pools["prefill"], pools["resume"], pools["decode"]) == (PREFILL, DECODE, DECODE)
    assert one(spans, "transfer").attributes["xylem.kv.bytes"] > 0
    assert one(spans, "place").attributes["xylem.prefill.pool"] == PREFILL


def test_a_request_whose_worker_dies_shows_both_attempts(served: Stack, sink: Collector) -> None:
    served.worker(name="other")
    served.wait_ready(2)
    trace = new_trace()
    body = ASKED | {"max_tokens": 200, "stream": True}
    with httpx.stream("POST", served.url + TEXT, json=body, headers=traced(trace), timeout=60) as answer:
        lines = answer.iter_lines()
        next(lines)
        [busy] = wait_until(lambda: [e for e in leases(served, POOL) if e.load.running], "one runs it")
        name = next(n for n in ("worker", "other") if served.names[n].pid == busy.worker.pid)
        served.names[name].send_signal(signal.SIGKILL)
        assert [*lines][-2] == "data: [DONE]"
    spans = sink.trace(trace)
    first, second = sorted((s for s in spans if s.name == "attempt"), key=lambda s: s.attributes["xylem.attempt"])
    assert (first.error, second.error) == ("worker_lost", "")
    assert first.attributes["xylem.worker"] == busy.worker.id != second.attributes["xylem.worker"]
    assert first.end <= second.start
    assert [s.name for s in spans if s.parent == first.id] == ["place"]
    assert {"place", "queue", "prefill", "decode"} == {s.name for s in spans if s.parent == second.id}
    assert first.parent == second.parent == one(spans, "text_completion mock").id
    served.worker(name=name)
    served.wait_ready(2)


def test_what_was_not_sampled_is_not_exported(served: Stack, sink: Collector) -> None:
    """No span is exported for a client that says no, nor without one: this sampler begins no trace."""
    trace_id = new_trace()
    answers = [post(served, TEXT, ASKED, **traced(trace_id, "00")), post(served, TEXT, ASKED)]
    answers.append(post(served, TEXT, ASKED, traceparent="00-nonsense"))
    asked(served, sink, TEXT, ASKED)  # comes later
    ids = {answer.json()["id"] for answer in answers}
    assert not sink.of(trace_id)
    assert not [span for span in sink.spans if ids & {str(v) for v in span.attributes.values()}]


def test_no_text_of_a_prompt_or_an_answer_leaves(served: Stack, sink: Collector) -> None:
    """Stop strings, unknown models and unknown parameters do not leave either."""
    trace = new_trace()
    answer = post(served, TEXT, ASKED | {"stop": ["zzz-stop"], "seed": 3, "user": "someone"}, **traced(trace))
    words = [word for word in answer.json()["choices"][0]["text"].split() if len(word) > 5]
    for body in (ASKED | {"model": "a-secret-model"}, ASKED | {"a-secret-field": 1}, ASKED | {"temperature": SECRET}):
        wrong = new_trace()
        assert post(served, TEXT, body, **traced(wrong)).status_code in (400, 404)
        assert sink.trace(wrong)[0].attributes["http.response.status_code"] in (400, 404)
    sink.trace(trace)
    exports = b"".join(sink.raw)
    assert b"xylem.request" in exports
    for text in (SECRET, "zzz-stop", "someone", "a-secret", *words):
        assert text.encode() not in exports, text


@pytest.mark.parametrize(("path", "body", "stages", "name"), [
    ("/v1/embeddings", {"model": "vectors", "input": ["a", "b"]}, {"place", "queue", "encode"}, "embeddings vectors"),
    ("/v2/embed", {"model": "vectors", "texts": ["a", "b"]}, {"place", "queue", "encode"}, "embeddings vectors"),
    (CHAT, OF_CHAT | {"stream": True}, {"place", "queue", "prefill", "first_token", "decode"}, "chat mock"),
    ("/v1/messages", OF_CHAT, {"place", "queue", "prefill", "first_token", "decode"}, "chat mock"),
    ("/v2/models/mock/generate", {"text_input": "x"}, {"place", "queue", "prefill", "first_token", "decode"},
     "text_completion mock"),
    ("/v1/responses", {"model": "mock", "input": "x", "max_output_tokens": 16},
     {"place", "queue", "prefill", "first_token", "decode"}, "chat mock"),
])  # fmt: skip
def test_each_kind_of_request_has_one_root(
    served: Stack, sink: Collector, path: str, body: dict[str, Any], stages: set[str], name: str
) -> None:
    spans = asked(served, sink, path, body)
    assert tree(spans)[PARENT] == [name]
    assert set(tree(spans)["attempt"]) == stages


def test_each_prompt_of_a_request_has_an_attempt(served: Stack, sink: Collector) -> None:
    """The first ones of many prompts do."""
    many = asked(served, sink, TEXT, ASKED | {"prompt": ["a prompt"] * 40, "max_tokens": 1}, attempts=32)
    assert sum(span.name == "attempt" for span in many) == 32
    assert one(many, "text_completion mock").attributes["xylem.prompts"] == 40
    spans = asked(served, sink, TEXT, ASKED | {"prompt": ["one", "two", "three"]})
    attempts = [span for span in spans if span.name == "attempt"]
    assert len({span.attributes["xylem.request"] for span in attempts}) == len(attempts) == 3
    assert {span.parent for span in attempts} == {one(spans, "text_completion mock").id}


def test_a_refused_request_shows_why_and_its_log_line_has_the_trace(served: Stack, sink: Collector) -> None:
    trace = new_trace()
    assert post(served, TEXT, ASKED | {"model": "idle"}, **traced(trace)).status_code == 503
    spans = sink.trace(trace)
    root = one(spans, "text_completion idle")
    assert (root.error, root.attributes["error.type"]) == ("no_worker", "no_worker")
    assert root.attributes["http.response.status_code"] == 503
    assert one(spans, "attempt").error == "no_worker"
    lines = [json.loads(line) for line in served.log("api").splitlines() if line.startswith("{")]
    assert [line["event"] for line in lines if line.get("trace_id") == trace] == ["request_failed", "request_ended"]


def test_a_workers_log_line_about_a_request_has_its_trace(served: Stack, sink: Collector) -> None:
    """The line of a worker that refuses another one's KV has it too; the trace shows that it did."""
    for pool in ("prefill-other", "decode-other"):
        served.worker(pool, pool)
    served.wait_ready(model="refusing")
    wait_until(lambda: leases(served, "prefill-other"), "the prefill worker is ready")
    spans = asked(served, sink, TEXT, ASKED | {"model": "refusing"})
    assert one(spans, "resume").attributes["xylem.handoff.refused"] is True
    lines = [json.loads(line) for line in served.log("decode-other").splitlines() if line.startswith("{")]
    (line,) = [line for line in lines if line["event"] == "handoff_refused"]
    assert (line["trace_id"], line["x_request_id"]) == (spans[0].trace, line["run"].partition(".")[0])


def test_an_answer_that_another_replica_takes_over_stays_in_its_trace(
    valkey_url: str, tmp_path: Path, sink: Collector
) -> None:
    """The trace has one root: that of the replica that ended it."""
    env = sink.environment() | {"XYLEM_DEPLOYMENT": tmp_path.name}
    with serving(valkey_url, tmp_path, {POOL: mock_pool(step_ms=20.0)}, **env) as s:
        replica_of(s, "api2")
        trace = new_trace()
        body = ASKED | {"max_tokens": 150, "stream": True}
        headers = traced(trace, **{"x-xylem-resumable": "1"})
        with httpx.stream("POST", s.url + TEXT, json=body, headers=headers, timeout=60) as answer:
            next(answer.iter_lines())
            s.names["api"].send_signal(signal.SIGKILL)
            s.names["api"].wait()
        spans = sink.trace(trace)
    root = one(spans, "text_completion mock")
    assert (root.parent, root.error) == (PARENT, "")
    assert {span.parent for span in spans if span.name == "attempt"} == {root.id}
    assert root.attributes["gen_ai.usage.output_tokens"] > 0


def test_each_line_of_a_batch_is_a_trace(valkey_url: str, tmp_path: Path, sink: Collector) -> None:
    env = sink.environment() | {"XYLEM_DEPLOYMENT": tmp_path.name, "XYLEM_FILES": str(tmp_path / "store")}
    with serving(valkey_url, tmp_path, {POOL: mock_pool()}, {"worker": POOL, "batch": "batch"}, **env) as s:
        with client_of(s.url) as client:
            batch, _ = answered(client, [OF_CHAT] * 3)
        roots = wait_until(lambda: three(sink, batch.id), "three traces")
    assert len({root.trace for root in roots}) == 3
    assert {root.parent for root in roots} == {""}


def three(sink: Collector, batch: str) -> list[Seen]:
    matches = [span for span in sink.spans if span.attributes.get("xylem.batch") == batch]
    return matches if len(matches) == 3 else []


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize("hangs", [False, True])
def test_a_collector_that_is_away_holds_up_nobody(
    valkey_url: str, tmp_path: Path, protocol: str, *, hangs: bool
) -> None:
    """Each request is answered, more than the queue has room for, and the replica ends in time."""
    with silent() as listening:
        port = listening.getsockname()[1] if hangs else free_port()
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_BSP_MAX_QUEUE_SIZE": "20", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "10",
            "XYLEM_DEPLOYMENT": tmp_path.name,
        }  # fmt: skip
        with serving(valkey_url, tmp_path, {POOL: mock_pool(step_ms=0.1)}, **env) as s:
            with httpx.Client(timeout=5) as client:  # an export may take ten seconds
                for _ in range(30):
                    assert client.post(s.url + TEXT, json=ASKED).status_code == 200
            s.names["api"].send_signal(signal.SIGTERM)
            assert s.names["api"].wait(timeout=15) in (0, -signal.SIGTERM)


def silent() -> socket.socket:
    """A server that takes connections and says nothing."""
    listening = socket.create_server(("127.0.0.1", 0))
    connections = []

    def take() -> None:
        try:
            while True:
                connections.append(listening.accept())
        except OSError:
            pass

    threading.Thread(target=take, daemon=True).start()
    return listening


def test_the_access_log_has_a_line_for_each_request_and_nothing_of_what_was_said(served: Stack) -> None:
    """Lines of uvicorn and Celery have the same form; those of one request have its id."""
    body = {"model": "mock", "messages": [{"role": "user", "content": "a secret"}], "max_tokens": 3, "stream": True}
    answer = post(served, "/v1/chat/completions?key=hidden", body, **{"x-request-id": "seen-1"})
    assert answer.status_code == 200
    assert httpx.get(f"{served.url}/v1/files/file-none", headers={"x-request-id": "seen-2"}).status_code == 404

    def lines() -> dict[str, dict[str, Any]]:
        entries = [json.loads(line) for line in served.log("api").splitlines() if line.startswith("{")]
        return {line["x_request_id"]: line for line in entries if line["event"] == "request_ended"}

    wait_until(lambda: {"seen-1", "seen-2"} <= lines().keys(), "both are in the log", 10)
    chat, file = lines()["seen-1"], lines()["seen-2"]
    assert (chat["method"], chat["route"], chat["status"], chat["whole"]) == ("POST", "/v1/chat/completions", 200, True)
    assert chat["bytes"] == len(answer.content)
    assert chat["seconds"] > 0
    assert (file["route"], file["status"]) == ("/v1/files/{file}", 404)
    for name in served.names:
        log = served.log(name)
        assert not [text for text in ("a secret", "hidden") if text in log]
        assert [line for line in log.splitlines() if not line.startswith("{")] == []
