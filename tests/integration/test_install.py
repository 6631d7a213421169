"""The first command on a plain machine: Python, pip and make, and no `uv`."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.wheel_index import PYTORCH, Indexes, wheel_indexes, write_wheel

ROOT = Path(__file__).parents[2]
TORCH = (ROOT / "requirements/torch-cpu.txt").read_text().strip().removeprefix("torch==").removesuffix("+cpu")
UV = re.search(r"^uv==\S+", (ROOT / "requirements/dev.txt").read_text(), re.MULTILINE)[0]  # type: ignore[index]
TOOLS = ("bash", "cut", "dirname", "grep", "make", "rm", "touch", "uname")


@pytest.fixture
def indexes(tmp_path: Path) -> Iterator[Indexes]:
    """The usual index has uv and what builds a package, and a torch that isn't the CPU build."""
    (tmp_path / "server").mkdir()
    with wheel_indexes(tmp_path / "server") as both:
        fetch = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--only-binary",
            ":all:",
            "--dest",
            str(both.usual),
        ]
        subprocess.run([*fetch, UV, "hatchling", "editables"], check=True)
        write_wheel(both.usual, "torch", TORCH)
        write_wheel(both.usual, "another", "1.0")
        yield both


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The project, with a lock file of two packages, and without its own code."""
    clone = tmp_path / "clone"
    file_names = ("Makefile", "ops/install.sh", "ops/device.sh", "requirements/dev.txt", "requirements/torch-cpu.txt")
    for name in (*file_names, "pyproject.toml", "README.md"):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    for package in ("app", "workers"):
        (clone / package).mkdir()
    (clone / "requirements/cpu.txt").write_text("another==1.0\n")
    return clone


def make(clone: Path, indexes: Indexes, target: str) -> "subprocess.CompletedProcess[str]":
    tools = clone.parent / "tools"
    if not tools.exists():
        tools.mkdir()
        for tool in TOOLS:
            (tools / tool).symlink_to(str(shutil.which(tool)))
    environment = {"PATH": str(tools), "HOME": str(clone.parent), **indexes.environment}
    command = [str(tools / "make"), target, f"PYTHON={os.path.realpath(sys.executable)}"]
    return subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, timeout=500, check=False)


@pytest.mark.timeout(600)
def test_a_machine_without_uv_whose_index_has_no_cpu_torch_gets_both(clone: Path, indexes: Indexes) -> None:
    """Plain pip finds no `torch==…+cpu` in the usual index, and this ended `make run` and `make test` at once."""
    first_run = make(clone, indexes, ".venv/.cpu")
    assert first_run.returncode
    assert f"neither pip nor uv (--torch-backend cpu) finds torch=={TORCH}+cpu" in first_run.stderr
    assert not (clone / ".venv").exists()  # the next try may name another Python
    assert f"{PYTORCH}/whl/cpu/torch/" in indexes.asked

    write_wheel(indexes.pytorch, "torch", f"{TORCH}+cpu")
    second_run = make(clone, indexes, ".venv/.cpu")
    assert not second_run.returncode, second_run.stderr
    assert (clone / ".venv/.cpu").exists()
    packages = subprocess.run(
        [str(clone / ".venv/bin/python"), "-m", "pip", "list", "--format=freeze"],
        check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    assert {f"torch=={TORCH}+cpu", "another==1.0", UV, "xylem-serve==0.1.0"} <= set(packages)
