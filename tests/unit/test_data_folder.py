"""Folders: what lies once for a user, what belongs to a deployment, and what commands find of a running system."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.cli.client import admin_key
from app.cli.running_system import REDIS_URL, SIGN_IN_KEY, command_settings, tell_commands
from app.errors import SettingsError
from app.settings import load_settings
from tests.stack import ROOT


def test_a_checkout_has_its_own_folder_and_a_package_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model is fetched once, and not for each working folder."""
    monkeypatch.delenv("XYLEM_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    assert load_settings().home == ROOT / ".xylem"
    shutil.copytree(ROOT / "app", tmp_path / "site/app", ignore=shutil.ignore_patterns("__pycache__"))
    script = "from app.settings import load_settings; print(load_settings().home)"
    env = {"PYTHONPATH": str(tmp_path / "site"), "XDG_DATA_HOME": str(tmp_path / "data"), "HOME": str(tmp_path)}
    argv = [sys.executable, "-c", script]
    assert subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout.strip() == str(
        tmp_path / "data/xylem"
    )
    home = subprocess.run(
        argv, env=env | {"XYLEM_HOME": "/elsewhere"}, capture_output=True, text=True, check=True
    ).stdout
    assert home.strip() == "/elsewhere"


def test_models_are_the_users_and_what_clients_sent_is_the_deployments(tmp_path: Path) -> None:
    """Two deployments share downloads, and neither sees, or counts, the other's files."""
    one, other = (load_settings(home=tmp_path, deployment=name) for name in ("one", "other"))
    assert one.fetched_models == other.fetched_models == tmp_path / "fetched"
    assert one.lora_store_path == other.lora_store_path
    for settings, name in ((one, "one"), (other, "other")):
        folder = tmp_path / "deployments" / name
        assert (settings.files_url, settings.media_store_url) == (str(folder / "files"), str(folder / "media"))
        assert settings.usage_database == f"sqlite:///{folder / 'usage.sqlite'}"


def test_admin_commands_take_the_key_of_the_system_that_they_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XYLEM_HOME", str(tmp_path))
    (folder := tmp_path / "run/8123").mkdir(parents=True)
    (folder / SIGN_IN_KEY).write_text("secret")
    assert admin_key("http://127.0.0.1:8123", None) == "secret"
    assert admin_key("http://127.0.0.1:8123", "mine") == "mine"
    assert admin_key("http://127.0.0.1:8124", None) is None
    assert admin_key("http://elsewhere:8123", None) is None, "it is sent to nobody else"


def ended_process() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_commands_find_the_one_system_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody says its port, as long as there is no other one."""
    monkeypatch.setenv("XYLEM_HOME", str(tmp_path))
    for name in ("XYLEM_PORT", "XYLEM_REDIS_URL", "XYLEM_REQUIRE_KEYS"):
        monkeypatch.delenv(name, raising=False)
    for port, pid in ((8123, os.getpid()), (8124, ended_process()), (8125, os.getpid())):
        (folder := tmp_path / "run" / str(port)).mkdir(parents=True)
        system = load_settings(port=port, redis_url=f"redis://:x@127.0.0.1:{port}/0", require_keys=port == 8123)
        tell_commands(system, folder)
        facts = json.loads((folder / "system.json").read_text())
        (folder / "system.json").write_text(json.dumps(facts | {"pid": pid}))
        if port == 8125:
            with pytest.raises(SettingsError, match="at the ports 8123, 8125: set XYLEM_PORT"):
                command_settings()
        else:
            system = command_settings()
            assert (system.port, system.redis_url, system.require_keys) == (8123, "redis://:x@127.0.0.1:8123/0", True)
    monkeypatch.setenv("XYLEM_PORT", "8125")
    assert command_settings().redis_url.endswith(":8125/0")
    assert not command_settings().require_keys


def test_commands_find_the_usage_of_a_system_that_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its Valkey no longer answers, and its folder stays."""
    monkeypatch.setenv("XYLEM_HOME", str(tmp_path))
    monkeypatch.setenv("XYLEM_PORT", "8123")
    monkeypatch.delenv("XYLEM_REDIS_URL", raising=False)
    run = tmp_path / "run/8123"
    assert command_settings().state_folder == tmp_path / "deployments/xylem"
    run.mkdir(parents=True)
    (run / REDIS_URL).write_text("redis://:secret@127.0.0.1:1/0")
    (run / "system.json").write_text(json.dumps({"pid": ended_process(), "state": str(run), "deployment": "xylem"}))
    settings = command_settings()
    assert settings.usage_database == f"sqlite:///{run / 'usage.sqlite'}"
    assert settings.redis_url == load_settings().redis_url
    monkeypatch.setenv("XYLEM_REDIS_URL", "redis://other:6379/0")  # that one is meant, then
    assert command_settings().state_folder == tmp_path / "deployments/xylem"
