"""The `xylem up` of this user, for commands: nobody has to copy the address of its Redis."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import psutil

if TYPE_CHECKING:
    from app.settings import Settings

REDIS_URL = "redis_url"  # the file of a run's folder that has the URL of its Redis, with its password
SIGN_IN_KEY = "admin-key"  # the file there that has the key of the console's link
_SYSTEM = "system.json"  # the file there that tells commands of the system
_TOLD = ("deployment", "state", "pools_file", "require_keys", "port")


def tell_commands(settings: "Settings", run_folder: Path) -> None:
    """Writes what commands need to know of the system that this process runs."""
    (run_folder / REDIS_URL).write_text(settings.redis_url)
    facts = {name: value for name in _TOLD if (value := getattr(settings, name)) is not None}
    facts |= {"pid": os.getpid(), "pools_file": settings.pools_file.resolve()}
    (run_folder / _SYSTEM).write_bytes(orjson.dumps(facts, default=str))


def command_settings() -> "Settings":
    """The settings; where they name no Redis, those of the `xylem up` at XYLEM_PORT, or of the only one that runs.

    Raises: SettingsError.
    """
    from app.errors import SettingsError
    from app.settings import load_settings

    settings = load_settings()
    if "redis_url" in settings.model_fields_set:
        return settings
    folders = {settings.port: settings.run_folder}
    if "port" not in settings.model_fields_set and not _is_alive(_facts(settings.run_folder)):
        folders = {port: folder for folder in (settings.home / "run").glob("*/") if (port := _port_of(folder))}
    alive = {port: folder for port, folder in folders.items() if _is_alive(_facts(folder))}
    if len(alive) > 1:
        raise SettingsError(f"several systems run, at the ports {', '.join(map(str, sorted(alive)))}: set XYLEM_PORT")
    folder = next(iter(alive.values()), settings.run_folder)
    facts = _facts(folder)
    if not facts:
        return settings
    url = {"redis_url": (folder / REDIS_URL).read_text()} if alive else {}
    own = {name: value for name, value in facts.items() if name in _TOLD and name not in settings.model_fields_set}
    return load_settings(**own, **url)


def _port_of(folder: Path) -> int:
    return int(folder.name) if folder.name.isdecimal() else 0


def _facts(folder: Path) -> dict[str, Any]:
    """Empty if there never was a system."""
    try:
        facts = orjson.loads((folder / _SYSTEM).read_bytes())
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _is_alive(facts: dict[str, Any]) -> bool:
    pid = facts.get("pid")
    return isinstance(pid, int) and pid > 0 and psutil.pid_exists(pid)
