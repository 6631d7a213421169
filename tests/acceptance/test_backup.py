"""Tests docs/guide/backup.md: a snapshot and a copy of the files bring batches, files and kept answers back."""

import json
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from redis import Redis

from app.ids import BATCH_QUEUE
from tests.serving import client_of
from tests.stack import Stack, mock_pool, stack, valkey, wait_until

LINES = 150
PATIENCE_S = 240


@pytest.fixture
def redis_cli() -> str:
    path = shutil.which("redis-cli")
    assert path, "redis-cli is not installed: `make test` installs it where it may, else use your package manager"
    return path


def started(s: Stack) -> OpenAI:
    s.api()
    s.worker()
    s.worker(BATCH_QUEUE, "batch")
    s.wait_ready(1, timeout_s=120)
    return client_of(s.url)


def resumed(s: Stack, answer: str) -> str:
    """The whole stream of a kept answer, from its begin."""
    return httpx.get(f"{s.url}/v1/responses/{answer}", params={"stream": True, "starting_after": 0}, timeout=60).text


def completed(client: OpenAI, batch: str) -> int:
    counts = client.batches.retrieve(batch).request_counts
    return counts.completed if counts else 0


def ended(client: OpenAI, answer: str) -> str | None:
    """A background response's status when it has ended."""
    status = client.responses.retrieve(answer).status
    return None if status in ("queued", "in_progress") else status


@pytest.mark.timeout(900)
def test_a_backup_gives_back_batches_files_and_kept_answers(tmp_path: Path, redis_cli: str) -> None:
    """The fleet is killed, and restored on other servers, with other bytes of everything that came after the backup."""
    before, after = tmp_path / "before", tmp_path / "after"
    for folder in (before, after):
        folder.mkdir()
    pools = {"decode-pool-a": mock_pool(step_ms=20.0, answer_tokens=40, max_running=4)}
    body = {"model": "mock", "prompt": "a line", "max_tokens": 20, "ignore_eos": True}
    lines = [{"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body} for i in range(LINES)]
    input_bytes = "\n".join(map(json.dumps, lines)).encode()
    fields: dict[str, Any] = {"model": "mock", "input": "Say something.", "store": True}

    with valkey(before) as url, stack(url, before, pools) as s, started(s) as client:
        response = client.responses.create(**fields, max_output_tokens=20)
        stream = client.responses.create(**fields, max_output_tokens=20, background=True, stream=True)
        (*_, last) = stream
        assert last.type == "response.incomplete", "it has as many tokens as it may"
        stream_id = last.response.id
        stream_text = resumed(s, stream_id)
        file = client.files.create(file=("in.jsonl", input_bytes), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
        wait_until(lambda: completed(client, batch.id) > LINES / 5, "a part of the batch is done", PATIENCE_S)
        running = client.responses.create(**fields, max_output_tokens=1000, background=True)
        snapshot = before / "xylem.rdb"
        subprocess.run([redis_cli, "-u", url, "--rdb", str(snapshot)], check=True, capture_output=True)
        shutil.copytree(before / "files", after / "files")
        at_backup = completed(client, batch.id)
        assert at_backup < LINES
        wait_until(lambda: completed(client, batch.id) > at_backup, "and more since the backup", PATIENCE_S)
        for process in s.procs:
            process.send_signal(signal.SIGKILL)

    shutil.copy(snapshot, after / "dump.rdb")
    shutil.rmtree(before / "files")
    with valkey(after) as url, stack(url, after, pools) as s:
        with Redis.from_url(url) as redis:
            redis.config_set("appendonly", "yes")
        with started(s) as client:
            assert client.files.content(file.id).content == input_bytes
            assert client.responses.retrieve(response.id).output == response.output
            assert resumed(s, stream_id) == stream_text
            wait_until(lambda: client.batches.retrieve(batch.id).status == "completed", "it completes", PATIENCE_S, 0.5)
            output = client.batches.retrieve(batch.id).output_file_id
            assert output is not None
            ids = [json.loads(line)["custom_id"] for line in client.files.content(output).text.splitlines()]
            assert sorted(ids, key=int) == [str(i) for i in range(LINES)]
            wait_until(lambda: ended(client, running.id), "what ran at the backup ends", PATIENCE_S)
            assert ended(client, running.id) == "completed"
