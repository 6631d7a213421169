"""Batches with the official client, on real processes: what comes out is what online requests get, line for line.

Workers, API and Redis die meanwhile.
"""

import json
import re
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import fsspec
import httpx
import pytest
from openai import OpenAI
from openai.types import Batch

from tests.batching import CHAT, TEXT, ended, line, lines_of, results, submitted
from tests.chaos.fleet import TEMPLATE, Fleet
from tests.hostile_grammars import DEEP, rules
from tests.s3 import s3_server
from tests.stack import mock_pool, stop, wait_until

POOL = "decode-pool-a"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def fleet_of(directory: Path, *, workers: int = 2, **env: str) -> Fleet:
    pool = mock_pool() | {"chat_template": str(TEMPLATE)}
    return Fleet(directory, {POOL: pool}, apis=1, workers=workers, **env)


def batch_workers(fleet: Fleet, count: int) -> None:
    for i in range(count):
        fleet.stack.worker("batch", f"batch-{i}")


@dataclass
class Listener:
    """The webhook's receiver: it does not take the first message about any batch."""

    url: str
    heard: list[tuple[dict[str, str], str]] = field(default_factory=list)

    def about(self, batch: Batch) -> list[tuple[dict[str, str], str]]:
        return [message for message in self.heard if batch.id in message[1]]


@pytest.fixture(scope="module")
def listener() -> Iterator[Listener]:
    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            earlier_ids = {json.loads(other)["id"] for _, other in hook.heard}
            hook.heard.append((dict(self.headers.items()), body))
            self.send_response(200 if json.loads(body)["id"] in earlier_ids else 500)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    hook = Listener(f"http://127.0.0.1:{server.server_port}/hook")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield hook
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, listener: Listener) -> Iterator[Fleet]:
    """The fleet of all tests in this file.

    The tests that end its processes, and the one that waits until nothing is left of all its batches, are at the end of
    the file.
    """
    env = {"XYLEM_WEBHOOK_URL": listener.url, "XYLEM_WEBHOOK_SECRET": SECRET}
    with fleet_of(tmp_path_factory.mktemp("batch") / "fleet", **env) as f:
        batch_workers(f, 2)
        yield f


@pytest.fixture(scope="module")
def client(fleet: Fleet) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{fleet.urls()[0]}/v1", api_key="none", max_retries=3, timeout=60) as c:
        yield c


def asking(custom_id: str, url: str = CHAT, **body: Any) -> dict[str, Any]:
    return line(custom_id, url, **{"model": "mock", "temperature": 0} | body)


def asks(i: int, tokens: int = 12) -> dict[str, Any]:
    return asking(
        f"id-{i}", messages=[{"role": "user", "content": f"Subject {i % 9}. " * 20 + str(i)}], max_tokens=tokens
    )


def progressed(c: OpenAI, batch: Batch, least: int) -> None:
    def far_enough() -> bool:
        counts = c.batches.retrieve(batch.id).request_counts
        return counts is not None and counts.completed >= least

    wait_until(far_enough, f"{least} lines are done", 60, 0.1)


def nothing_left(fleet: Fleet) -> None:
    """Waits until nothing is left of the lines' bookkeeping, in Redis and in the storage."""

    def clean() -> bool:
        kinds = ("todo:", "taken:", "done:", "request:", "batches")
        # What is left of requests on a worker that was killed goes after ten minutes.
        keys = [key.decode() for key in fleet.redis.keys("*") if not 0 < fleet.redis.ttl(key) <= 600]
        folders = list(fleet.directory.glob("files/batches/*"))
        return not folders and not [k for k in keys if k.split(":", 1)[1].startswith(kinds) and "batches-of" not in k]

    wait_until(clean, "nothing of it is left", 40)  # it is kept for 10 s


USER = [{"role": "user", "content": "Tell me a story"}]
SCHEMA = {"type": "object", "properties": {"days": {"type": "integer", "maximum": 9}}, "required": ["days"],
          "additionalProperties": False}  # fmt: skip
TOOL: dict[str, Any] = {"name": "look", "description": "Look", "parameters": SCHEMA}
FORMAT = {"type": "json_schema", "name": "days", "schema": SCHEMA}
BODIES: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": USER, "max_tokens": 20, "logprobs": True, "n": 2}),
    (CHAT, {"messages": USER, "tools": [{"type": "function", "function": TOOL | {"strict": True}}],
            "tool_choice": "required", "parallel_tool_calls": False}),
    (CHAT, {"messages": USER, "structured_outputs": {"json": SCHEMA}}),
    (TEXT, {"prompt": ["Once upon", "There was"], "max_tokens": 15, "logprobs": 1, "stop": [" the"]}),
    (TEXT, {"prompt": "Once upon", "guided_json": SCHEMA}),
    (RESPONSES, {"input": "Tell me a story", "max_output_tokens": 20, "instructions": "Be short.", "store": False}),
    (RESPONSES, {"input": "Tell me a story", "tools": [TOOL | {"type": "function"}], "store": False,
                 "tool_choice": {"type": "function", "name": "look"}}),
    (RESPONSES, {"input": "Tell me a story", "text": {"format": FORMAT}, "store": False}),
    (MESSAGES, {"messages": USER, "max_tokens": 20, "system": "Be short."}),
    (MESSAGES, {"messages": USER, "max_tokens": 200, "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
                "tools": [{"name": "look", "input_schema": SCHEMA}]}),
]  # fmt: skip
# Of each request, and its token cache's luck.
OWN = (
    "id",
    "call_id",
    "created",
    "created_at",
    "completed_at",
    "cached_tokens",
    "input_tokens",
    "cache_read_input_tokens",
)


def bare(answer: Any) -> Any:
    """Returns the answer without what differs from request to request."""
    if isinstance(answer, dict):
        return {k: bare(v) for k, v in answer.items() if k not in OWN}
    return [bare(each) for each in answer] if isinstance(answer, list) else answer


@pytest.mark.parametrize(("url", "asked"), BODIES, ids=lambda part: "" if isinstance(part, str) else ",".join(part))
def test_bodies_are_those_of_online_requests(fleet: Fleet, client: OpenAI, url: str, asked: dict[str, Any]) -> None:
    """Every endpoint, with what it can do: same template, parameters and shape; tools and schemas too."""
    body = {"model": "mock", "temperature": 0} | asked
    online = httpx.post(f"{fleet.urls()[0]}{url}", json=body, timeout=60).json()
    batch = ended(client, submitted(client, [asking("one", url, **asked)], url))
    (output_line,), errors = results(client, batch)
    assert errors == []
    assert output_line["custom_id"] == "one"
    assert output_line["error"] is None
    assert output_line["response"]["status_code"] == 200
    assert json.dumps(bare(output_line["response"]["body"])) == json.dumps(bare(online))
    assert ("days" in json.dumps(asked)) == (re.search(r"days[\Wnrt]+\d", json.dumps(online)) is not None)


def test_the_batch_object_says_how_it_went(client: OpenAI) -> None:
    batch = submitted(client, [asks(i) for i in range(70)], metadata={"kind": "test"})
    assert batch.status == "validating"
    end = ended(client, batch)
    assert end.status == "completed"
    assert end.metadata == {"kind": "test"}
    assert end.request_counts is not None
    assert (end.request_counts.total, end.request_counts.completed, end.request_counts.failed) == (70, 70, 0)
    assert end.created_at <= (end.in_progress_at or 0) <= (end.finalizing_at or 0) <= (end.completed_at or 0)
    assert end.expires_at == end.created_at + 86_400
    assert end.error_file_id is None
    assert end.usage is not None
    assert end.usage.output_tokens == 70 * 12
    answers = lines_of(client, end.output_file_id)
    usages = [answer["response"]["body"]["usage"] for answer in answers]
    assert end.usage.input_tokens == sum(u["prompt_tokens"] for u in usages)
    assert end.usage.input_tokens_details.cached_tokens > 0
    assert end.model == "mock"


def bad_lines() -> dict[int, tuple[Any, str]]:
    """The bad lines by their positions: each line, and the code of its error."""
    good = asks(0)
    return {
        100: ('{"custom_id": "cut', "invalid_json_line"),
        500: (good | {"custom_id": "model", "body": good["body"] | {"model": "nobody"}}, "model_not_found"),
        900: (asks(3), "duplicate_custom_id"),
        1300: (asking("long", messages=[{"role": "user", "content": "word " * 40_000}]), "context_length_exceeded"),
        1700: (good | {"custom_id": "refused", "body": good["body"] | {"temperature": 9}}, "invalid_value"),
    }


def test_files_and_batches_are_the_same_on_s3(tmp_path: Path) -> None:
    """Nothing of them lies on a disk."""
    with s3_server(), fleet_of(tmp_path / "fleet", workers=1, XYLEM_FILES="s3://bucket/here") as fleet:
        batch_workers(fleet, 1)
        with OpenAI(base_url=f"{fleet.urls()[0]}/v1", api_key="none", timeout=60) as c:
            end_state = ended(c, submitted(c, [*(asks(i) for i in range(300)), "no JSON"]))
            assert end_state.status == "completed"
            output, errors = results(c, end_state)
            assert sorted(answer["custom_id"] for answer in output) == sorted(f"id-{i}" for i in range(300))
            assert [error["error"]["line"] for error in errors] == [301]
            assert not list(fleet.directory.rglob("files/*"))
            names = {name.rpartition("/")[2] for name in fsspec.filesystem("s3").find("bucket/here")}
            assert names >= {end_state.input_file_id, end_state.output_file_id, end_state.error_file_id}


def test_every_line_of_a_cancelled_batch_is_in_its_output_or_its_error_file(client: OpenAI) -> None:
    batch = submitted(client, [asks(i, tokens=150) for i in range(1500)])
    progressed(client, batch, 30)
    assert client.batches.cancel(batch.id).status == "cancelling"
    end_state = ended(client, batch)
    assert end_state.status == "cancelled"
    assert end_state.cancelling_at is not None
    assert end_state.cancelled_at is not None
    output, errors = results(client, end_state)
    assert 30 <= len(output) < 1500
    assert {error["error"]["code"] for error in errors} == {"batch_cancelled"}
    assert sorted(x["custom_id"] for x in output + errors) == sorted(f"id-{i}" for i in range(1500))


def test_lines_left_at_the_windows_end_have_a_batch_expired_error(client: OpenAI) -> None:
    batch = submitted(client, [asks(i, tokens=300) for i in range(1500)], completion_window="4s")
    end_state = ended(client, batch)
    assert end_state.status == "expired"
    assert end_state.expired_at is not None
    output, errors = results(client, end_state)
    assert {error["error"]["code"] for error in errors} == {"batch_expired"}
    assert all(error["response"] is None for error in errors)
    assert len(output) + len(errors) == 1500
    assert end_state.request_counts is not None
    assert end_state.request_counts.completed == len(output)


def test_metrics_tell_of_batches(client: OpenAI, fleet: Fleet) -> None:
    def told() -> dict[str, float]:
        text = httpx.get(f"{fleet.urls()[0]}/metrics").text
        samples = [
            raw.rpartition(" ") for raw in text.splitlines() if raw.startswith(("xylem_batch", "xylem_worker_busy"))
        ]
        return {name: float(value) for name, _, value in samples}

    before = told()
    batch = submitted(client, [asks(i, tokens=200) for i in range(400)])
    progressed(client, batch, 20)
    wait_until(lambda: told()["xylem_batch_capacity_share"] > 0, "some seats are theirs")
    during = told()
    assert during['xylem_batches{status="in_progress"}'] == 1
    assert 0 < during["xylem_batch_backlog_lines"] <= 380
    assert 0 < during["xylem_batch_oldest_seconds"] < 60
    ended(client, batch)
    after = told()
    lines, tokens = 'xylem_batch_lines_total{outcome="completed"}', 'xylem_batch_tokens_total{kind="completion"}'
    assert after[lines] - before[lines] == 400
    assert after[tokens] - before[tokens] == 400 * 200
    assert after["xylem_batch_backlog_lines"] == 0
    busy = [name for name in after if name.startswith("xylem_worker_busy_seconds_total")]
    assert sum(after[name] - before.get(name, 0) for name in busy) > 0.5


def test_a_line_of_which_a_compiler_would_die_fails_alone(client: OpenAI, fleet: Fleet) -> None:
    running = [proc.poll() for proc in fleet.stack.procs]
    fatal = [asks(1)["body"] | {"guided_grammar": rules(4000)}, asks(2)["body"] | {"guided_json": DEEP["anyOf"]}]
    batch = submitted(client, [asks(0), *(asking(f"fatal-{i}", **body) for i, body in enumerate(fatal)), asks(3)])
    answers, errors = results(client, ended(client, batch))
    assert sorted(answer["custom_id"] for answer in answers) == ["id-0", "id-3"]
    assert sorted(error["custom_id"] for error in errors) == ["fatal-0", "fatal-1"]
    for error in errors:
        assert error["response"]["status_code"] == 400
        assert error["response"]["body"]["error"]["param"] in ("guided_grammar", "guided_json")
    assert [proc.poll() for proc in fleet.stack.procs] == running


def test_a_file_of_which_nothing_can_be_read_fails_the_batch(client: OpenAI) -> None:
    end_state = ended(client, submitted(client, [" "]))
    assert end_state.status == "failed"
    assert end_state.failed_at is not None
    assert end_state.errors is not None
    assert [problem.code for problem in end_state.errors.data or []] == ["empty_file"]


def test_a_paused_batch_computes_nothing_and_goes_on_where_it_was(client: OpenAI, fleet: Fleet) -> None:
    batch = submitted(client, [asks(i, tokens=100) for i in range(800)])
    progressed(client, batch, 50)

    def told(what: str) -> int:
        state = httpx.post(f"{fleet.urls()[0]}/v1/batches/{batch.id}/{what}").json()
        assert state["paused"] is (what == "pause")
        return int(state["request_counts"]["completed"])

    def at_rest() -> int | None:
        """Number of lines that are done, if it stays the same for a second."""
        first = told("pause")
        time.sleep(1.0)
        return first if told("pause") == first else None

    assert wait_until(at_rest, "the workers have heard of it") < 800
    told("resume")
    end_state = ended(client, batch)
    assert end_state.request_counts is not None
    assert end_state.request_counts.completed == 800


def test_a_rolling_restart_of_batch_workers_loses_nothing(client: OpenAI, fleet: Fleet) -> None:
    batch = submitted(client, [asks(i, tokens=80) for i in range(800)])
    for i in range(2):
        progressed(client, batch, 100 + 200 * i)
        process = fleet.process(f"batch-{i}")
        process.terminate()
        assert process.wait(60) == 0
        fleet.stack.worker("batch", f"batch-{i}")
    end_state = ended(client, batch)
    output, errors = results(client, end_state)
    assert errors == []
    assert sorted(answer["custom_id"] for answer in output) == sorted(f"id-{i}" for i in range(800))


def test_a_group_of_tasks_does_without_http(client: OpenAI, fleet: Fleet) -> None:
    """The group is submitted as docs/guide/batches.md shows it."""
    for name in ("a", "b"):
        raw = "\n".join(json.dumps(asks(i)) for i in range(5)).encode()
        (fleet.directory / "files/inbox").mkdir(parents=True, exist_ok=True)
        (fleet.directory / f"files/inbox/{name}.jsonl").write_bytes(raw)
    code = f"""
from celery import group
from app.celery import app
from app.tasks.batch import submit

group(submit.s(f"inbox/{{name}}.jsonl", "{CHAT}", metadata={{"of": name}}) for name in "ab").apply_async()
"""
    from tests.stack import PYTHON

    fleet.stack.spawn("group", PYTHON, "-c", code).wait(60)

    def both() -> list[Batch]:
        matches = [b for b in client.batches.list(limit=20) if (b.metadata or {}).get("of")]
        return matches if len(matches) == 2 and all(b.status == "completed" for b in matches) else []

    batches = wait_until(both, "both batches are done", 60)
    assert {batch.metadata["of"] for batch in batches} == {"a", "b"}
    assert all(len(lines_of(client, batch.output_file_id)) == 5 for batch in batches)
    assert not list(fleet.stack.redis.scan_iter("*celery-task*"))  # nobody has set a place for results


def test_a_webhook_is_told_how_a_background_response_has_ended(fleet: Fleet, listener: Listener) -> None:
    """The webhook is called as often as it takes, and for no other answer; so nobody has to ask again and again."""
    with OpenAI(base_url=f"{fleet.urls()[0]}/v1", api_key="none", webhook_secret=SECRET) as c:
        ask: dict[str, Any] = {"model": "mock", "input": "hello"}
        plain = c.responses.create(**ask, max_output_tokens=2)
        short = c.responses.create(**ask, max_output_tokens=2, background=True)
        long = c.responses.create(**ask, background=True, max_output_tokens=100)
        c.responses.cancel(long.id)

        def told(response: str) -> list[tuple[dict[str, str], str]]:
            matches = [message for message in listener.heard if response in message[1]]
            return matches if len(matches) > 1 else []

        for response, kind in ((short.id, "response.incomplete"), (long.id, "response.cancelled")):
            messages = wait_until(lambda response=response: told(response), "the webhook has taken it", 60)
            for headers, body in messages:
                event = c.webhooks.unwrap(body, {k.lower(): v for k, v in headers.items()})
                assert (event.type, event.data.id) == (kind, response)
        assert not told(plain.id)


def test_a_webhook_is_told_once_it_takes_it_and_openais_client_believes_it(
    client: OpenAI, fleet: Fleet, listener: Listener
) -> None:
    batch = ended(client, submitted(client, [asks(1)]))
    wait_until(lambda: len(listener.about(batch)) == 2, "it is told again", 60)
    time.sleep(1)
    messages = listener.about(batch)
    assert len(messages) == 2
    with OpenAI(base_url=f"{fleet.urls()[0]}/v1", api_key="none", webhook_secret=SECRET) as c:
        for headers, body in messages:
            event = c.webhooks.unwrap(body, {k.lower(): v for k, v in headers.items()})
            assert event.type == "batch.completed"
            assert event.data.id == batch.id
    assert len({json.loads(body)["id"] for _, body in messages}) == 1


def test_no_process_has_logged_a_traceback(fleet: Fleet) -> None:
    """The check covers all tests above. The tests below end processes and Redis."""
    for name in fleet.stack.names:
        assert "Traceback" not in fleet.stack.log(name), name


@pytest.mark.timeout(240)
def test_each_of_two_thousand_lines_gives_one_line_though_workers_are_killed(client: OpenAI, fleet: Fleet) -> None:
    """Five broken ones cost themselves only. An engine's worker and a batch worker die, and Redis restarts."""
    lines: list[Any] = [asks(i) for i in range(2000)]
    for at, (what, _) in bad_lines().items():
        lines[at] = what
    batch = submitted(client, lines)
    progressed(client, batch, 300)
    stop(fleet.process(f"{POOL}-0"), signal.SIGKILL)
    progressed(client, batch, 700)
    stop(fleet.process("batch-0"), signal.SIGKILL)
    progressed(client, batch, 1100)
    fleet.start_worker(f"{POOL}-0")
    fleet.stack.worker("batch", "batch-0")
    assert fleet.redis_process is not None
    stop(fleet.redis_process, signal.SIGKILL)
    fleet.start_redis()
    end_state = ended(client, batch, 120)
    assert end_state.status == "completed"
    assert end_state.request_counts is not None
    assert (end_state.request_counts.total, end_state.request_counts.failed) == (2000, 5)
    output, errors = results(client, end_state)
    good_ids = {f"id-{i}" for i in range(2000)} - {f"id-{at}" for at in bad_lines()}
    assert sorted(answer["custom_id"] for answer in output) == sorted(good_ids)
    assert {e["error"]["line"]: e["error"]["code"] for e in errors} == {
        at + 1: code for at, (_, code) in bad_lines().items()
    }
    shapes = [error["response"]["body"]["error"].keys() for error in errors]
    assert all(shape == {"message", "type", "param", "code"} for shape in shapes)
    assert all(a["response"]["body"]["usage"]["completion_tokens"] == 12 for a in output)


def test_of_batches_that_are_over_no_bookkeeping_is_left(client: OpenAI, fleet: Fleet) -> None:
    """The check covers this batch and all above: completed, cancelled, expired, failed, and with killed workers."""
    ended(client, submitted(client, [asks(1)]))
    nothing_left(fleet)
