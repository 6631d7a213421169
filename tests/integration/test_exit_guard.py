"""The guard with real processes: what a killed worker leaves behind is ended at once, and its lease is gone."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator

import psutil
import pytest
from redis import Redis

from tests.stack import PYTHON, ROOT, wait_until

# What a worker is to its guard: it has processes below it, says when it has them all, and ends in some way.
WORKER = """
import os, subprocess, sys, time
from app.keys import Keys
from workers.engine.exit_guard import ExitGuard, lease_ended
guard = ExitGuard(os.environ["XYLEM_REDIS_URL"], lease_ended(Keys("test"), "w1", "pool"))
how = sys.argv[1]
if how == "forked":
    child = os.fork()
    if not child:
        time.sleep(600)
        os._exit(0)
else:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid
print(guard._pid, child, flush=True)
if how != "loading":
    sys.stdin.readline()
    guard.loaded()
print("loaded", flush=True)
sys.stdin.readline()
if how == "graceful":
    os.kill(child, 9)
    os.waitpid(child, 0)
"""


@pytest.fixture
def lease(valkey_url: str) -> Iterator["Redis"]:
    redis = Redis.from_url(valkey_url)
    redis.flushall()
    redis.set("test:worker:w1", b"lease")
    yield redis
    redis.close()


class Worker:
    def __init__(self, url: str, how: str) -> None:
        env = os.environ | {"XYLEM_REDIS_URL": url, "XYLEM_DEPLOYMENT": "test", "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [PYTHON, "-c", WORKER, how], cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.guard, self.child = map(psutil.Process, map(int, self._read().split()))

    def _read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def loaded(self) -> bool:
        self.go_on()
        while (line := self._read()) not in ("loaded\n", ""):  # a line of its log
            pass
        return line != ""

    def close(self) -> None:
        for process in (psutil.Process(self.process.pid) if self.process.poll() is None else None, self.child):
            if process is not None and process.is_running():
                process.kill()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(5)


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("how", ["spawned", "forked", "loading"])
def test_the_guard_ends_a_killed_workers_children_and_its_lease(valkey_url: str, lease: "Redis", how: str) -> None:
    """A forked child has all that its parent has open, the guard's pipe too; a load may be killed as well."""
    worker = Worker(valkey_url, how)
    try:
        if how == "loading":
            assert worker._read() == "loaded\n"
        else:
            assert worker.loaded()
        # The guard looks once a second while the engine loads, and when it has loaded.
        wait_until(lambda: worker.child in watched(worker), "the guard has seen its child")
        worker.process.send_signal(signal.SIGKILL)
        wait_until(lambda: gone(worker.child), "its child is gone")
        wait_until(lambda: not lease.exists("test:worker:w1"), "its lease is gone")
        wait_until(lambda: lease.zscore("test:changed:pool", "w1"), "API replicas are told")
        wait_until(lambda: gone(worker.guard), "the guard has ended")
    finally:
        worker.close()


def watched(worker: Worker) -> list[psutil.Process]:
    """The processes that a guard sees that looks now; a moment later it has seen them."""
    time.sleep(1.3)
    return [p for p in psutil.Process(worker.process.pid).children(recursive=True) if p.pid != worker.guard.pid]


def test_the_guard_ends_with_its_worker(valkey_url: str, lease: "Redis") -> None:
    worker = Worker(valkey_url, "graceful")
    try:
        wait_until(lambda: os.getsid(worker.guard.pid) == worker.guard.pid, "no Ctrl-C of its worker's reaches it")
        assert worker.loaded()
        worker.go_on()
        assert worker.process.wait(10) == 0
        wait_until(lambda: gone(worker.guard), "the guard has ended")
        assert not lease.exists("test:worker:w1")
    finally:
        worker.close()


def test_a_worker_does_without_a_guard_that_was_killed(valkey_url: str, lease: "Redis") -> None:
    """An engine that has loaded for minutes is worth more than its guard."""
    worker = Worker(valkey_url, "spawned")
    try:
        worker.guard.kill()
        wait_until(lambda: gone(worker.guard), "the guard is gone")
        assert worker.loaded()
    finally:
        worker.close()
