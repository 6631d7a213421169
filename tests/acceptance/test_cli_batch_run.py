"""`xylem batch run` on a real system: a table in, the table with answers out, also when it is killed amid."""

import csv
import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyarrow import parquet

from tests.serving import served_by
from tests.stack import BIN, ROOT, Stack, mock_pool, wait_until

POOL, MODEL, COUNT = "decode-pool-a", "mock", 400
TEXT = "/v1/completions"
ECHO = ("--endpoint", TEXT, "--prompt", "{{id}} is {{name}}.", "--body", '{"echo": true}', "--max-tokens", "4")


served = served_by({POOL: mock_pool()}, {POOL: POOL, "batch": "batch"}, XYLEM_FILES="{path}/store")


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its row 7 doesn't fit the model."""
    path = tmp_path_factory.mktemp("people") / "in.csv"
    with path.open("w") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "name"])
        writer.writerows([i, "long " * 10_000 if i == 7 else f"person {i}"] for i in range(COUNT))
    return path


def command(s: Stack, source: Path, *options: str) -> list[str]:
    return [str(BIN / "xylem"), "batch", "run", str(source), "--model", MODEL, "--url", s.url, *options]


def run(s: Stack, source: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    argv = command(s, source, *options)
    return subprocess.run(argv, cwd=ROOT, env=s.environment(), capture_output=True, text=True, check=False, timeout=120)


def batches(s: Stack) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = httpx.get(f"{s.url}/v1/batches").json()["data"]
    return data


def test_each_row_gets_its_own_answer_though_the_command_is_killed(served: Stack, people: Path, tmp_path: Path) -> None:
    """The row that fails has its reason; the same command then finds everything done, and says so with code 1."""
    output = tmp_path / "out.parquet"
    before = len(batches(served))
    with subprocess.Popen(command(served, people, *ECHO, "--output", str(output)), env=served.environment()) as process:
        wait_until(lambda: len(batches(served)) > before, "its batch is there")
        process.send_signal(signal.SIGKILL)
    assert not output.exists()
    outcome = run(served, people, *ECHO, "--output", str(output))
    assert outcome.returncode == 1, outcome.stderr
    assert f"{COUNT} rows, 1 failed" in outcome.stderr
    assert len(batches(served)) == before + 1, "the killed command's batch was taken on"
    rows = parquet.read_table(output).to_pylist()
    assert [int(row["id"]) for row in rows] == [*range(COUNT)]
    for row in rows:
        if row["id"] == "7":
            assert "context_length_exceeded" in row["error"]
        else:
            assert row["answer"].startswith(f"{row['id']} is {row['name']}."), row
    assert httpx.get(f"{served.url}/v1/files").json()["data"] == []


def test_a_schemas_properties_become_columns(served: Stack, tmp_path: Path) -> None:
    (source := tmp_path / "in.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    properties = {"good": {"type": "boolean"}, "stars": {"type": "integer", "enum": [1, 2]}}
    schema = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    output = tmp_path / "out.jsonl"
    outcome = run(served, source, "--prompt", "{{text}}", "--schema", json.dumps(schema), "--output", str(output))
    assert outcome.returncode == 0, outcome.stderr
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["text"] for row in rows] == ["a", "b"]
    assert all(type(row["good"]) is bool and row["stars"] in (1, 2) and row["error"] is None for row in rows)
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", "out.jsonl"}, "no state is left"


def test_the_cost_is_told_before_and_afterwards(served: Stack, tmp_path: Path) -> None:
    (source := tmp_path / "in.txt").write_text("one\ntwo\nthree\n")
    output = tmp_path / "out.csv"
    assert served.xylem("tenants", "prices", MODEL, "--input", "1000000", "--output", "1000000").returncode == 0
    options = ("--endpoint", TEXT, "--prompt", "{{text}}", "--max-tokens", "5", "--output", str(output))
    before = len(batches(served))
    outcome = run(served, source, *options, "--estimate")
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.startswith("3 rows: about 7 + "), outcome.stdout
    assert " in money; " in outcome.stdout
    assert (len(batches(served)), output.exists()) == (before, False)
    outcome = run(served, source, *options)
    assert "3 rows, 0 failed; 7 + 15 tokens, 22.0000 in money" in outcome.stderr
    assert run(served, source, *options).returncode == 2, "the output is there"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--prompt", "{{x}}"), "row 1: 'x' is undefined"),
        (("--prompt", "x", "--window", "1w"), "'1w' is no 'completion_window'"),
        (("--prompt", "x", "--endpoint", "/v1/embeddings"), "not served at /v1/embeddings"),
        (("--prompt", "x", "--model", "other"), "'other' is not served here"),
        (("--prompt", "x", "--output", "/nowhere/x.csv"), "there is no folder"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_uploaded(
    served: Stack, tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    (source := tmp_path / "in.txt").write_text("one\n")
    outcome = run(served, source, "--output", str(tmp_path / "out.csv"), *options)
    assert outcome.returncode in (1, 2)
    assert words in outcome.stderr
    assert outcome.stderr.count("\n") == 1
    assert httpx.get(f"{served.url}/v1/files").json()["data"] == []


def test_files_are_listed_and_removed(served: Stack, tmp_path: Path) -> None:
    (source := tmp_path / "in.jsonl").write_text("{}\n")
    upload = {"file": (source.name, source.read_bytes())}
    id_ = httpx.post(f"{served.url}/v1/files", data={"purpose": "batch"}, files=upload).json()["id"]
    outcome = served.xylem("files", "list", "--url", served.url)
    assert id_ in outcome.stdout
    assert "in.jsonl" in outcome.stdout
    assert served.xylem("files", "remove", id_, "--url", served.url).returncode == 0
    assert id_ not in served.xylem("files", "list", "--url", served.url).stdout
    assert served.xylem("files", "remove", id_, "--url", served.url).returncode == 1
