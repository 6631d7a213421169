"""OpenAI's batches with the official client: written down, shown, cancelled and paused. Nobody computes them here."""

import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types import Batch
from redis import Redis

from app.batch.batch_store import BatchStore
from app.batch.file_store import FileStore
from app.batch.records import Problem, StoredFile, packed
from app.ids import BatchId, FileId
from tests.acceptance.test_bad_input import refusal
from tests.acceptance.test_files import LINE, bring
from tests.acceptance.test_security import create
from tests.serving import client_of, served_by, serving
from tests.stack import Stack, mock_pool, redis_server
from tests.wires import as_worker

POOL = "decode-pool-a"
DAY = 86_400
ASKED: dict[str, Any] = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}


# An API that asks for no keys; no worker.
served = served_by({POOL: mock_pool()}, {}, XYLEM_FILES="{path}/store")


@pytest.fixture(scope="module")
def input_file(client: OpenAI) -> str:
    return bring(client).id


def settings(deployment: str, directory: Path) -> dict[str, str]:
    return {"XYLEM_DEPLOYMENT": deployment, "XYLEM_FILES": str(directory / "store")}


def begin(client: OpenAI, input_file: str, **more: Any) -> Batch:
    return client.batches.create(**{"input_file_id": input_file, **ASKED, **more})


def set_status(s: Stack, batch: str, *expected: Any, **fields: Any) -> None:
    assert as_worker(s, lambda wire, keys: BatchStore(wire, keys, 60).set_status(BatchId(batch), expected, fields))


def test_a_batch_is_what_was_asked_for_and_nothing_of_it_is_done(client: OpenAI, input_file: str) -> None:
    """Every field that OpenAI's has, as the client parses it."""
    batch = begin(client, input_file, metadata={"job": "night"})
    assert batch.model_dump(exclude={"id", "created_at", "expires_at"}) == {
        "object": "batch",
        "endpoint": "/v1/chat/completions",
        "model": None,
        "errors": None,
        "input_file_id": input_file,
        "completion_window": "24h",
        "status": "validating",
        "paused": False,
        "output_file_id": None,
        "error_file_id": None,
        **{f"{when}_at": None for when in (
            "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"
        )},
        "request_counts": {"total": 0, "completed": 0, "failed": 0},
        "not_executed": 0,
        "usage": {
            "input_tokens": 0,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 0,
        },
        "metadata": {"job": "night"},
    }  # fmt: skip
    assert batch.expires_at == batch.created_at + DAY
    assert abs(batch.created_at - time.time()) < 60
    assert client.batches.retrieve(batch.id) == batch


def test_what_a_worker_writes_is_shown(served: Stack, client: OpenAI, input_file: str) -> None:
    """Counts, tokens, the model, times, files, and what is wrong with which line."""
    batch = begin(client, input_file)
    set_status(served, batch.id, "validating", status="in_progress", in_progress_at=5, total=9, completed=3, failed=1,
         prompt=50, cached=20, completion=7, model="mock", output="file-o", errors_file="file-e")  # fmt: skip
    current = client.batches.retrieve(batch.id)
    assert (current.status, current.in_progress_at, current.model) == ("in_progress", 5, "mock")
    assert (current.output_file_id, current.error_file_id) == ("file-o", "file-e")
    assert current.request_counts is not None
    assert current.request_counts.model_dump() == {"total": 9, "completed": 3, "failed": 1}
    assert current.usage is not None
    assert (current.usage.input_tokens, current.usage.output_tokens, current.usage.total_tokens) == (50, 7, 57)
    assert current.usage.input_tokens_details.cached_tokens == 20
    problems = [Problem("invalid_json_line", "It is no JSON.", 3), Problem("empty_file", "Nothing.", param="x")]
    set_status(served, batch.id, "in_progress", status="failed", failed_at=6, problems=packed(problems))
    end_state = client.batches.retrieve(batch.id)
    assert (end_state.status, end_state.failed_at) == ("failed", 6)
    assert end_state.errors is not None
    assert end_state.errors.object == "list"
    assert [(e.code, e.message, e.line, e.param) for e in end_state.errors.data or []] == [
        ("invalid_json_line", "It is no JSON.", 3, None), ("empty_file", "Nothing.", None, "x"),
    ]  # fmt: skip


def test_batches_are_listed_the_newest_first_page_by_page(client: OpenAI, input_file: str) -> None:
    ids = [begin(client, input_file).id for _ in range(7)][::-1]
    assert [batch.id for batch in client.batches.list(limit=3)][:7] == ids
    page = client.batches.list(limit=2, after=ids[1])
    assert [batch.id for batch in page.data] == ids[2:4]
    assert page.has_more
    with pytest.raises(openai.BadRequestError, match="'after'"):
        client.batches.list(after="batch_unknown")


def test_a_batch_is_cancelled_once_and_one_that_has_ended_not_at_all(
    served: Stack, client: OpenAI, input_file: str
) -> None:
    """409 as OpenAI says it; cancelling what is being cancelled, or is, changes nothing."""
    batch = begin(client, input_file)
    first = client.batches.cancel(batch.id)
    assert first.status == "cancelling"
    assert first.cancelling_at is not None
    assert client.batches.cancel(batch.id) == first
    set_status(served, batch.id, "cancelling", status="cancelled", cancelled_at=1)
    assert client.batches.cancel(batch.id).status == "cancelled"
    for status in ("completed", "failed", "expired"):
        batch_id = begin(client, input_file).id
        set_status(served, batch_id, "validating", status=status)
        with pytest.raises(openai.ConflictError) as exc_info:
            client.batches.cancel(batch_id)
        assert f"Cannot cancel a batch with status '{status}'." in exc_info.value.message
        assert client.batches.retrieve(batch_id).status == status


def test_a_batch_that_is_being_finished_is_finished_though_it_is_cancelled(
    served: Stack, client: OpenAI, input_file: str
) -> None:
    batch_id = begin(client, input_file).id
    set_status(served, batch_id, "validating", status="finalizing")
    assert client.batches.cancel(batch_id).status == "finalizing"


def test_a_batch_is_paused_and_resumed(served: Stack, client: OpenAI, input_file: str) -> None:
    """An extension; as often as one likes, and without effect when it has ended."""
    batch_id = begin(client, input_file).id

    def post(what: str) -> dict[str, Any]:
        return httpx.post(f"{served.url}/v1/batches/{batch_id}/{what}").raise_for_status().json()  # type: ignore[no-any-return]

    for _ in range(2):
        assert post("pause")["paused"] is True
    assert client.batches.retrieve(batch_id).model_dump()["paused"] is True
    assert post("resume")["paused"] is False
    set_status(served, batch_id, "validating", status="completed")
    body = post("pause")
    assert (body["paused"], body["status"]) == (False, "completed")


@pytest.mark.parametrize(("field", "value", "param"), [
    *(("endpoint", endpoint, "endpoint") for endpoint in ("/v1/images", "/v1/moderations", "/v1/models", "")),
    *(("completion_window", window, "completion_window")
      for window in ("", "24", "0h", "31d", "1w", "-24h", "24h ", "1e3s", "9999999d")),
    ("metadata", {str(i): "x" for i in range(17)}, "metadata"),
    ("metadata", {"k" * 65: "x"}, "metadata"),
    ("metadata", {"k": "x" * 513}, "metadata.k"),
    ("metadata", {"k": 1}, "metadata.k"),
    ("output_expires_after", {"anchor": "created_at", "seconds": 3599}, "output_expires_after.seconds"),
    ("output_expires_after", {"anchor": "created_at", "seconds": 2592001}, "output_expires_after.seconds"),
    ("output_expires_after", {"anchor": "now", "seconds": 3600}, "output_expires_after.anchor"),
    ("priority", 1, "priority"),
])  # fmt: skip
def test_a_bad_parameter_is_refused_by_name(
    served: Stack, client: OpenAI, input_file: str, field: str, value: Any, param: str
) -> None:
    before = [batch.id for batch in client.batches.list()]
    answer = httpx.post(f"{served.url}/v1/batches", json={"input_file_id": input_file, **ASKED, field: value})
    error = refusal(answer, 400)
    assert (error["param"] or "").startswith(param)
    assert [batch.id for batch in client.batches.list()] == before


@pytest.mark.parametrize("missing", ["input_file_id", "endpoint", "completion_window"])
def test_a_missing_parameter_is_refused_by_name(served: Stack, input_file: str, missing: str) -> None:
    body = {name: value for name, value in {"input_file_id": input_file, **ASKED}.items() if name != missing}
    assert refusal(httpx.post(f"{served.url}/v1/batches", json=body), 400)["param"] == missing


@pytest.mark.parametrize(("window", "seconds"), [("1m", 60), ("90s", 90), ("2h", 7200), ("30d", 30 * DAY)])
def test_other_windows_than_openais_are_an_extension(
    client: OpenAI, input_file: str, window: str, seconds: int
) -> None:
    batch = begin(client, input_file, completion_window=window)
    assert batch.completion_window == window
    assert batch.expires_at == batch.created_at + seconds


def test_an_input_file_is_there_and_of_the_right_purpose(served: Stack, client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as exc_info:
        begin(client, "file-unknown")
    assert exc_info.value.code == "file_not_found"
    output = StoredFile(FileId("file-out"), "", "out.jsonl", "batch_output", 1, int(time.time()))
    as_worker(served, lambda wire, keys: FileStore(wire, keys).add(output))
    with pytest.raises(openai.BadRequestError) as wrong:
        begin(client, "file-out")
    assert wrong.value.param == "input_file_id"
    for call in (client.batches.retrieve, client.batches.cancel):
        with pytest.raises(openai.NotFoundError) as unknown:
            call("batch_unknown")
        assert unknown.value.code == "batch_not_found"


def test_batches_are_of_the_key_that_made_them(valkey_url: str, tmp_path: Path) -> None:
    """Another key sees none of them, and can't use the other one's file."""
    env = {"XYLEM_REQUIRE_KEYS": "true", **settings("batches-of", tmp_path)}
    with serving(valkey_url, tmp_path, {POOL: mock_pool()}, {}, **env) as s:
        alice, bob = (client_of(s.url, api_key=create(s, [s.url], name)) for name in ("alice", "bob"))
        with alice, bob:
            file = bring(alice).id
            alices_batch = begin(alice, file)
            with pytest.raises(openai.NotFoundError):
                begin(bob, file)
            for call in (bob.batches.retrieve, bob.batches.cancel):
                with pytest.raises(openai.NotFoundError):
                    call(alices_batch.id)
            assert list(bob.batches.list()) == []
            assert [batch.id for batch in alice.batches.list()] == [alices_batch.id]
            for what in ("pause", "resume"):
                answer = httpx.post(
                    f"{s.url}/v1/batches/{alices_batch.id}/{what}", headers={"authorization": f"Bearer {bob.api_key}"}
                )
                assert refusal(answer, 404)["code"] == "batch_not_found"
            assert alice.batches.retrieve(alices_batch.id) == alices_batch


def test_while_redis_is_away_clients_are_told_to_come_again(tmp_path: Path) -> None:
    """503, and of a file that could not be written down no bytes are left."""
    with (
        redis_server(tmp_path) as url,
        serving(url, tmp_path, {POOL: mock_pool()}, {}, **settings("away", tmp_path)) as s,
    ):
        with client_of(s.url) as client:
            batch = begin(client, bring(client).id)
            Redis.from_url(url).shutdown(nosave=True)
            for answer in (
                httpx.get(f"{s.url}/v1/batches/{batch.id}", timeout=30),
                httpx.get(f"{s.url}/v1/files", timeout=30),
                httpx.post(f"{s.url}/v1/batches", json={"input_file_id": batch.input_file_id, **ASKED}, timeout=30),
                httpx.post(
                    f"{s.url}/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", LINE)}, timeout=30
                ),
            ):
                assert refusal(answer, 503)["code"] == "store_unavailable"
                assert answer.headers["retry-after"] == "1"
            assert len(list((tmp_path / "store" / "files").iterdir())) == 1
        assert "Traceback" not in s.log("api")
