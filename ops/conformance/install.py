"""Installs the suites into an environment of their own, and unpacks the tests of source packages."""

import re
import tarfile
from pathlib import Path

from ops.installing import new_environment, pip, unless_same

HOME = Path(".xylem/conformance").resolve()
PYTHON = HOME / "venv" / "bin" / "python"
REQUIREMENTS = Path(__file__).parents[2] / "requirements" / "conformance.txt"


def install() -> None:
    """Unless these versions are there. Raises: Unavailable with the reason."""
    unless_same(REQUIREMENTS, HOME / "venv" / "installed.txt", _fetch)


def _fetch() -> None:
    new_environment(HOME / "venv")
    pip("--python", str(PYTHON), "install", "--quiet", "--no-deps", "-r", str(REQUIREMENTS))


def sources(package: str) -> Path:
    """The folder of a package's source, of the version that is installed. Raises: Unavailable."""
    pin = re.search(rf"^{package}==(\S+)", REQUIREMENTS.read_text(), re.MULTILINE)
    assert pin, package
    folder = HOME / f"{package}-{pin[1]}"
    if not folder.exists():
        where = ["--dest", str(HOME)]
        pip("download", "--quiet", "--no-deps", "--no-binary", package, *where, f"{package}=={pin[1]}")
        with tarfile.open(HOME / f"{folder.name}.tar.gz") as archive:
            archive.extractall(HOME, filter="data")
    return folder
