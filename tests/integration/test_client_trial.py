"""A client that is tried: what of it counts as failed, and what is left of it afterwards."""

import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from ops.bench.processes import Unavailable
from ops.clients import install, trial, tried
from ops.clients.tried import CLIENTS, Client
from tests.stack import wait_until

CLIENT = Client("x", "x", "nothing")
WAITS = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"


@pytest.fixture
def try_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    monkeypatch.setattr(trial, "PYTHON", {CLIENT.place: Path(sys.executable)})
    monkeypatch.setattr(tried, "HERE", tmp_path)

    def outcome(text: str) -> str:
        (tmp_path / "with_x.py").write_text(text)
        return trial._try(CLIENT, "http://127.0.0.1:1", 2, tmp_path)

    return outcome


def test_a_client_knows_the_server_and_nothing_of_the_user(
    try_script: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "secret")
    assert not try_script("import os; print(dict(os.environ), os.getcwd())")
    log = (tmp_path / "x.log").read_text()
    assert "'OPENAI_BASE_URL': 'http://127.0.0.1:1/v1'" in log
    assert "'KSERVE_HTTP': '127.0.0.1:1', 'KSERVE_GRPC': '127.0.0.1:2'" in log
    assert f"'HOME': '{tmp_path / 'x'}'" in log
    assert "secret" not in log


def test_a_client_that_fails_says_why(try_script: Callable[[str], str]) -> None:
    assert "AssertionError: not sunny" in try_script("assert False, 'not sunny'")


def test_a_client_that_takes_too_long_is_ended_with_all_that_it_started(
    try_script: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_LIMIT_S", 3.0)
    assert try_script(WAITS).startswith("over 3 s")
    child = int((tmp_path / "x.log").read_text())
    wait_until(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie", "it has ended")


def test_a_client_that_cant_be_installed_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "HOME", tmp_path)
    monkeypatch.setattr(install, "NPM", tmp_path / "npm")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(Unavailable, match="npm: No such file"):
        install.install("npm")
    assert any(client.place == "npm" for client in CLIENTS)
