"""Folders: what lies once for a user, what belongs to a deployment, and what commands find of a running system."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.cli.running_system import REDIS_URL, command_settings
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


def test_commands_find_the_usage_of_a_system_that_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its Valkey no longer answers, and its folder stays."""
    monkeypatch.setenv("XYLEM_HOME", str(tmp_path))
    monkeypatch.setenv("XYLEM_PORT", "8123")
    monkeypatch.delenv("XYLEM_REDIS_URL", raising=False)
    run = tmp_path / "run/8123"
    assert command_settings().state_folder == tmp_path / "deployments/xylem"
    run.mkdir(parents=True)
    (run / REDIS_URL).write_text("redis://:secret@127.0.0.1:1/0")
    settings = command_settings()
    assert settings.usage_database == f"sqlite:///{run / 'usage.sqlite'}"
    assert settings.redis_url == load_settings().redis_url
    monkeypatch.setenv("XYLEM_REDIS_URL", "redis://other:6379/0")  # that one is meant, then
    assert command_settings().state_folder == tmp_path / "deployments/xylem"
