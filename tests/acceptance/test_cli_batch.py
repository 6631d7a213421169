"""`xylem batch` against a real API. What a batch worker would do, the tests write."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.batch.file_store import FileStore
from app.batch.records import Problem, StoredFile, packed
from app.batch.storage import Storage
from app.ids import FileId, new_file_id
from tests.acceptance.test_batches import POOL, set_status
from tests.serving import served_by
from tests.stack import BIN, ROOT, Stack, mock_pool, stop, wait_until
from tests.wires import as_worker

LIMIT = 300_000


served = served_by({POOL: mock_pool()}, {}, XYLEM_MAX_FILE=str(LIMIT), XYLEM_FILES="{path}/store")


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A first line that nobody can read, and one request."""
    path = tmp_path_factory.mktemp("lines") / "in.jsonl"
    line = {"custom_id": "1", "method": "POST", "url": "/v1/responses", "body": {}}
    path.write_text(f"not JSON\n{json.dumps(line)}\n")
    return path


@contextmanager
def begun(s: Stack, *argv: str) -> Iterator["subprocess.Popen[str]"]:
    """Leaves neither a process nor a pipe, however the test ends."""
    command = [str(BIN / "xylem"), "batch", *argv, "--url", s.url]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=s.environment(), stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def xylem(s: Stack, *argv: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    result = s.xylem("batch", *argv, "--url", s.url)
    return result.returncode, result.stdout, result.stderr


def submitted(s: Stack, lines: Path, *argv: str) -> str:
    code, output, why = xylem(s, "submit", str(lines), *argv)
    assert code == 0, why
    (id_,) = output.splitlines()
    return id_


def shown(s: Stack, id_: str) -> dict[str, Any]:
    batch: dict[str, Any] = httpx.get(f"{s.url}/v1/batches/{id_}").raise_for_status().json()
    return batch


def output_file(s: Stack, content: bytes) -> FileId:
    file = StoredFile(new_file_id(), "", "out.jsonl", "batch_output", len(content), int(time.time()))
    Storage(s.environment()["XYLEM_FILES"]).put(file.path, content)
    as_worker(s, lambda wire, keys: FileStore(wire, keys).add(file))
    return file.id


def complete(s: Stack, id_: str, **fields: Any) -> None:
    set_status(s, id_, "validating", "in_progress", status="completed", completed_at=int(time.time()), **fields)


@contextmanager
def waiting(s: Stack, lines: Path, *argv: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """`submit --wait` once it has said its batch's id."""
    with begun(s, "submit", str(lines), "--wait", *argv) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()


def test_a_file_is_submitted_and_its_batch_shown(served: Stack, lines: Path) -> None:
    """The endpoint is that of the first line that can be read; stdout has the id and nothing else."""
    id_ = submitted(served, lines, "--metadata", "job=night", "--metadata", "x=a=b", "--window", "2h")
    batch = shown(served, id_)
    assert (batch["endpoint"], batch["completion_window"]) == ("/v1/responses", "2h")
    assert batch["metadata"] == {"job": "night", "x": "a=b"}
    content = httpx.get(f"{served.url}/v1/files/{batch['input_file_id']}/content").content
    assert content == lines.read_bytes()
    assert httpx.get(f"{served.url}/v1/files/{batch['input_file_id']}").json()["filename"] == "in.jsonl"
    code, output, _ = xylem(served, "status", id_)
    assert (code, "validating: 0 of 0 lines done" in output) == (0, True)
    code, output, _ = xylem(served, "list", "--limit", "1")
    assert (code, id_ in output, "validating" in output) == (0, True, True)
    assert shown(served, submitted(served, lines, "--endpoint", "/v1/completions"))["endpoint"] == "/v1/completions"


def test_a_batch_is_paused_resumed_and_cancelled(served: Stack, lines: Path) -> None:
    id_ = submitted(served, lines)
    assert "validating (paused)" in xylem(served, "pause", id_)[1]
    assert shown(served, id_)["paused"]
    assert "(paused)" not in xylem(served, "resume", id_)[1]
    code, output, _ = xylem(served, "cancel", id_)
    assert (code, "cancelling" in output, shown(served, id_)["status"]) == (0, True, "cancelling")
    set_status(served, id_, "cancelling", status="expired")
    code, output, why = xylem(served, "cancel", id_)
    assert (code, output, why) == (1, "", "xylem: Cannot cancel a batch with status 'expired'.\n")


def test_wait_fetches_answers_and_errors_at_the_batchs_end(served: Stack, lines: Path, tmp_path: Path) -> None:
    """Answers go to one file, and errors to another."""
    out, error_path = tmp_path / "out.jsonl", tmp_path / "failed.jsonl"
    with waiting(served, lines, "--output", str(out), "--errors", str(error_path)) as (process, id_):
        set_status(served, id_, "validating", status="in_progress", total=3, completed=1, completion=20)
        time.sleep(1)
        assert process.poll() is None
        answers = b'{"custom_id": "1"}\n' * 5000
        complete(served, id_, completed=2, failed=1, output=output_file(served, answers),
                 errors_file=output_file(served, b"{}\n"))  # fmt: skip
        output, why = process.communicate(timeout=20)
        assert (process.returncode, output) == (1, ""), "a line failed"
        assert "completed: 2 of 3 lines done, 1 failed" in why
        assert f"1 lines failed: {error_path} says why" in why.replace("\n", "")
        assert out.read_bytes() == answers
        assert error_path.read_bytes() == b"{}\n"

        code, output, why = xylem(served, "results", id_)
        assert (code, output.encode()) == (0, answers)
        assert why == f"1 lines failed; see them with: xylem batch results {id_} --errors PATH\n"
        out.unlink()
        assert xylem(served, "results", id_, "--output", str(out))[:2] == (0, "")
        assert out.read_bytes() == answers


@pytest.mark.parametrize("status", ["failed", "expired", "cancelled"])
def test_wait_reports_a_batch_that_did_not_complete(served: Stack, lines: Path, status: str) -> None:
    """The exit code says so; and the output gives the reasons, line by line."""
    with waiting(served, lines) as (process, id_):
        problems = [Problem("invalid_json_line", f"[bold]wrong {i}", i) for i in range(1, 13)]
        set_status(served, id_, "validating", status=status, problems=packed(problems))
        _, why = process.communicate(timeout=20)
        assert process.returncode == 1
        assert f"{id_}  {status}: 0 of 0 lines done" in why
        assert "line 1: [bold]wrong 1\n" in why
        assert "and 2 more" in why
        code, _, why = xylem(served, "results", id_)
        assert (code, why) == (1, f"xylem: {id_} is {status} and has no results\n")
        assert xylem(served, "status", id_, "--wait")[0] == 1


def test_ctrl_c_ends_the_waiting_and_not_the_batch(served: Stack, lines: Path) -> None:
    with waiting(served, lines) as (process, id_):
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        _, why = process.communicate(timeout=20)
        assert process.returncode == 130
        assert f"xylem batch status {id_} --wait" in why
        assert "Traceback" not in why
        assert shown(served, id_)["status"] == "validating"


def test_wait_survives_an_outage_of_the_api(served: Stack, lines: Path) -> None:
    with waiting(served, lines) as (process, id_):
        stop(served.names["api"], signal.SIGKILL)
        time.sleep(1.5)
        assert process.poll() is None
        served.api()
        wait_until(served.ready, "the API listens again")
        complete(served, id_)
        process.communicate(timeout=20)
        assert process.returncode == 0


def test_what_cannot_be_done_is_said_in_one_line(served: Stack, lines: Path, tmp_path: Path) -> None:
    empty, large = tmp_path / "empty.jsonl", tmp_path / "large.jsonl"
    empty.write_text("[1]\n{}\n")
    large.write_bytes(lines.read_bytes() + b"x" * LIMIT)
    for argv, code, reason in (
        (("submit", str(tmp_path / "absent")), 2, "absent: No such file"),
        (("submit", str(tmp_path)), 2, "Is a directory"),
        (("submit", str(empty)), 2, "or give --endpoint"),
        (("submit", str(lines), "--output", "x"), 2, "--output and --errors need --wait"),
        (("submit", str(lines), "--metadata", "x"), 2, "--metadata x: has to be K=V"),
        (("submit", str(lines), "--window", "1w"), 2, "'1w' is no 'completion_window'"),
        (("submit", str(lines), "--endpoint", "/v1/images"), 2, "'/v1/images'"),
        (("submit", str(large)), 1, f"over the limit of {LIMIT} bytes"),
        (("status", "batch_unknown"), 1, "No batch found with id 'batch_unknown'."),
        (("results", "batch_unknown"), 1, "No batch found"),
    ):
        outcome = xylem(served, *argv)
        assert (outcome[0], outcome[1]) == (code, ""), outcome
        assert outcome[2].startswith("xylem: ")
        assert reason in outcome[2]
        assert outcome[2].count("\n") == 1


def test_a_file_whose_batch_is_refused_is_not_left_behind(served: Stack, lines: Path) -> None:
    def files() -> int:
        return len(httpx.get(f"{served.url}/v1/files").json()["data"])

    before = files()
    code, _, why = xylem(served, "submit", str(lines), "--metadata", f"{'x' * 65}=1")
    assert (code, files()) == (1, before), why
    assert "metadata" in why


def test_without_a_server_it_is_said_how_to_start_one(served: Stack, lines: Path) -> None:
    command = [str(BIN / "xylem"), "batch", "submit", str(lines), "--url", "http://127.0.0.1:1"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (result.returncode, result.stdout) == (1, "")
    assert "start one with: xylem up" in result.stderr
