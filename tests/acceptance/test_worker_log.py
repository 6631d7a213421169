"""Celery's own options say where a worker's log goes, and a worker that doesn't start leaves the reason there."""

import subprocess
from pathlib import Path

import pytest

from tests.stack import BIN, ROOT, Stack, mock_pool, stack, wait_until

POOL = "decode-pool-a"


def test_a_worker_writes_its_log_into_the_file_that_celery_names(valkey_url: str, tmp_path: Path) -> None:
    """The file's name has the worker's name where Celery puts it."""
    with stack(valkey_url, tmp_path, {POOL: mock_pool()}, XYLEM_DEPLOYMENT="logs") as s:
        argv = (str(BIN / "celery"), "-A", "app", "worker", "-Q", POOL, "-n", "one@host", "--logfile")
        s.spawn("stderr", *argv, str(tmp_path / "of-%n.log"))
        file = tmp_path / "of-one.log"
        wait_until(lambda: file.exists() and "engine_ready" in file.read_text(), "the log says that it is ready")
        assert "engine_ready" not in s.log("stderr")


@pytest.mark.parametrize(("queue", "pools", "reason"), [
    ("nowhere", {POOL: mock_pool()}, "-Q nowhere: name one pool of"),
    (POOL, {POOL: mock_pool(speed="high")}, "args.speed"),
    ("batch", {POOL: mock_pool() | {"engine": "none"}}, "pools.decode-pool-a.engine"),
])  # fmt: skip
def test_a_detached_worker_that_fails_leaves_its_reason(
    valkey_url: str, tmp_path: Path, queue: str, pools: dict[str, dict[str, object]], reason: str
) -> None:
    s = Stack(valkey_url, tmp_path, pools)
    file = tmp_path / "worker.log"
    argv = [str(BIN / "celery"), "-A", "app", "worker", "-Q", queue, "--detach"]
    files = ["--logfile", str(file), "--pidfile", str(tmp_path / "worker.pid")]
    subprocess.run([*argv, *files], cwd=ROOT, env=s.environment(), check=True, capture_output=True)
    wait_until(lambda: file.exists() and reason in file.read_text(), "the reason is in the log", 60)
    wait_until(lambda: not (tmp_path / "worker.pid").exists(), "it has ended")
