"""`xylem up` as typed: everything starts, says how to use it, comes back, and stops without leaving a process."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from redis import AuthenticationError, Redis

from tests.stack import BIN, free_port, stop, wait_until


class System:
    def __init__(self, home: Path, command: Sequence[str], folder: Path | None) -> None:
        self.home = home / "home"
        self.port, self.flower_port, self.output = free_port(), free_port(), home / "output"
        argv = [BIN / "xylem", *command, "--engine", "mock", "--workers", "2"]
        argv += ["--port", str(self.port), "--flower-port", str(self.flower_port)]
        self.began = time.monotonic()
        with self.output.open("wb") as sink:
            self.process = subprocess.Popen(
                argv,
                env={**os.environ, "XYLEM_HOME": str(self.home)},
                cwd=folder,
                stdout=sink,
                stderr=subprocess.STDOUT,
            )

    def wait_ready(self) -> None:
        wait_until(lambda: "curl -N" in self.output.read_text(), "the curl line", 60)
        self.seconds_to_ready = time.monotonic() - self.began
        self.children = psutil.Process(self.process.pid).children(recursive=True)


@contextmanager
def started(home: Path, *command: str, folder: Path | None = None) -> Iterator[System]:
    """Starts it in the folder."""
    running = System(home, command, folder)
    try:
        running.wait_ready()
        yield running
    finally:
        stop(running.process, signal.SIGINT, 30)


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    with started(tmp_path, "up") as running:
        yield running


@pytest.mark.alone
def test_up_serves_chats_and_stops_on_ctrl_c(system: System) -> None:
    """The mock system is ready in seconds; its curl line, `xylem chat` and Flower work; Ctrl-C ends it all."""
    assert system.seconds_to_ready < 20
    ready = httpx.get(f"http://127.0.0.1:{system.port}/ready").json()
    assert ready["workers"] == {"mock": 2}
    assert httpx.get(f"http://127.0.0.1:{system.flower_port}/healthcheck").is_success

    console = f"http://127.0.0.1:{system.port}/console"
    link = next(word for word in system.output.read_text().split() if word.startswith(console))
    assert "Xylem" in httpx.get(link).text
    file = system.home / "run" / str(system.port) / "admin-key"
    assert link == f"{console}#admin-key={file.read_text()}"
    assert file.stat().st_mode & 0o777 == 0o600
    assert all(file.read_text() not in log.read_text() for log in (file.parent / "logs").iterdir())
    page = {"origin": f"http://127.0.0.1:{system.port}", "authorization": f"Bearer {file.read_text()}"}
    assert httpx.patch(f"{page['origin']}/admin/prices", json={"prices": {}}, headers=page).status_code == 200

    (line,) = (line for line in system.output.read_text().splitlines() if line.startswith("curl"))
    output = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, check=True).stdout
    assert output.rstrip().endswith("data: [DONE]")
    chat = [BIN / "xylem", "chat", "hello", "--url", f"http://127.0.0.1:{system.port}"]
    assert subprocess.run(chat, capture_output=True, text=True, check=True).stdout.strip()

    system.process.send_signal(signal.SIGINT)
    assert system.process.wait(30) == 0
    assert len(system.children) == 8, "Valkey, the API, Flower, the batch worker, two workers, and the guard of each"
    assert [p for p in system.children if p.is_running()] == []


def test_what_clients_sent_is_this_users_alone(system: System) -> None:
    """The check covers files, Redis, and Flower, which a page's name that resolves to this machine does not open."""
    flower = f"http://127.0.0.1:{system.flower_port}/healthcheck"
    assert httpx.get(flower, headers={"host": "evil.example"}).status_code == 421
    assert httpx.get(flower, headers={"host": f"localhost:{system.flower_port}"}).is_success

    url = (system.home / "run" / str(system.port) / "redis_url").read_text()
    with Redis.from_url(url) as owner, Redis.from_url(f"redis://127.0.0.1:{urlsplit(url).port}") as stranger:
        assert owner.ping()
        with pytest.raises(AuthenticationError):
            stranger.ping()
    for process in system.children:
        assert str(urlsplit(url).password) not in " ".join(process.cmdline())
    keys = [BIN / "xylem", "keys", "create", "mine"]
    env = {name: value for name, value in os.environ.items() if name != "XYLEM_REDIS_URL"}
    env |= {"XYLEM_HOME": str(system.home), "XYLEM_PORT": str(system.port)}
    assert subprocess.run(keys, env=env, capture_output=True, text=True, check=True).stdout.startswith("xyl-")
    run_dir = system.home / "run" / str(system.port)
    assert run_dir.stat().st_mode & 0o077 == 0
    others = {path for path in system.home.rglob("*") if path.is_file()} - {*run_dir.rglob("*")}
    assert [path for path in others if path.stat().st_mode & 0o077] == []


def test_a_killed_worker_is_started_again(system: System) -> None:
    """The system heals without anybody at the keyboard."""
    before = _workers(system)
    assert len(before) == 2
    os.kill(min(before), signal.SIGKILL)
    wait_until(lambda: "starting it again" in system.output.read_text(), "the death is told")
    wait_until(lambda: len(_workers(system)) == 2 and _workers(system) != before, "two workers again")
    live = f"http://127.0.0.1:{system.port}/ready"
    wait_until(lambda: httpx.get(live).json()["workers"] == {"mock": 2}, "both hold a lease")


def test_a_model_is_served_in_the_folder_of_a_project_that_has_modules_of_the_same_names(tmp_path: Path) -> None:
    """Projects on FastAPI have an `app`, those on Celery have `workers`, and Flower's have a `flower.py`."""
    project = tmp_path / "project"
    for name in ("app/__init__.py", "app/celery.py", "workers/__init__.py", "tests/__init__.py", "flower.py"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("raise SystemExit('a module of the project')\n")
    with started(tmp_path, "serve", "organisation/name", folder=project) as running:
        models = httpx.get(f"http://127.0.0.1:{running.port}/v1/models").json()["data"]
        assert [model["id"] for model in models] == ["organisation/name"]
        assert httpx.get(f"http://127.0.0.1:{running.port}/ready").json()["workers"] == {"organisation/name": 2}
        assert httpx.get(f"http://127.0.0.1:{running.flower_port}/healthcheck").is_success
        url = (running.home / "run" / str(running.port) / "redis_url").read_text()
        command = [BIN / "celery", "-A", "xylem", "inspect", "ping"]
        pongs = subprocess.run(
            command, cwd=project, env={**os.environ, "XYLEM_REDIS_URL": url}, capture_output=True, text=True, check=True
        )
        assert "3 nodes online." in pongs.stdout  # two workers and that of batches


def _workers(system: System) -> set[int]:
    children = psutil.Process(system.process.pid).children()
    return {p.pid for p in children if p.status() != psutil.STATUS_ZOMBIE and "decode-pool" in " ".join(p.cmdline())}
