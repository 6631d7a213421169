"""The units of ops/systemd: systemd takes them, and their times follow from the settings."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from app.settings import Settings
from tests.stack import BIN, ROOT

FOLDER = ROOT / "ops" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
DRAIN_S = Settings.model_fields["drain_timeout_s"].default

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")


def values(unit: Path, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", unit.read_text(), re.MULTILINE)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units with the programs of this environment: systemd looks whether they are there."""
    for unit in UNITS:
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/xylem/.venv/bin", str(BIN)))
    return tmp_path


def analyze(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *args], check=False, capture_output=True, text=True, timeout=60)


@needs_systemd
@pytest.mark.parametrize("unit", [unit.name for unit in UNITS])
def test_systemd_finds_nothing_wrong(unit: str, installed: Path) -> None:
    result = analyze("verify", "--man=no", str(installed / unit))
    assert (result.returncode, result.stderr) == (0, "")


@needs_systemd
@pytest.mark.parametrize("unit", [unit.name for unit in UNITS])
def test_systemd_calls_no_unit_exposed(unit: str, installed: Path) -> None:
    """Its score is from 0 to 10, from 5 on `MEDIUM`; the threshold is ten times it."""
    result = analyze("security", "--offline=yes", "--threshold=45", str(installed / unit))
    assert result.returncode == 0, result.stdout + result.stderr


def test_systemd_waits_until_a_process_has_drained() -> None:
    """A worker may wait twice: for its requests, then for others that take KV from it."""
    waits = {unit.stem: int(*values(unit, "TimeoutStopSec")) for unit in UNITS if values(unit, "TimeoutStopSec")}
    assert waits == {"xylem-api": DRAIN_S + 30, "xylem-batch": DRAIN_S + 30, "xylem-worker@": 2 * DRAIN_S + 60}
    assert values(FOLDER / "xylem.env", "XYLEM_DRAIN_TIMEOUT_S") == [f"{DRAIN_S:g}"]


def test_only_the_worker_gets_the_signal_to_stop() -> None:
    """Its engine's processes have to go on until it has drained."""
    assert {unit.stem for unit in UNITS if values(unit, "KillMode") == ["mixed"]} == {
        "xylem-api", "xylem-batch", "xylem-worker@",
    }  # fmt: skip


def test_no_unit_runs_as_root_and_a_worker_sees_the_gpus() -> None:
    assert {user for unit in UNITS for user in values(unit, "User")} == {"xylem"}
    assert all(len(values(unit, "User")) == 1 for unit in UNITS)
    hides = {"PrivateDevices", "ProtectClock", "DevicePolicy", "DeviceAllow"}  # each limits a unit to some devices
    assert [key for key in hides if values(FOLDER / "xylem-worker@.service", key)] == []


def test_the_environment_file_has_settings_only() -> None:
    variable_names = re.findall(r"^(\w+)=", (FOLDER / "xylem.env").read_text(), re.MULTILINE)
    assert set(variable_names) <= {f"XYLEM_{name.upper()}" for name in Settings.model_fields}
    assert "XYLEM_REDIS_URL" in variable_names
