"""Installs the suites into an environment of their own, and unpacks the tests of source packages."""

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from ops.bench.processes import Unavailable

HOME = Path(".xylem/conformance").resolve()
PYTHON = HOME / "venv" / "bin" / "python"
REQUIREMENTS = Path(__file__).parents[2] / "requirements" / "conformance.txt"
_LIMIT_S = 900.0


def install() -> None:
    """Unless these versions are there. Raises: Unavailable with the reason."""
    marker = HOME / "venv" / "installed.txt"
    if marker.exists() and marker.read_bytes() == REQUIREMENTS.read_bytes():
        return
    uv = str(Path(sys.executable).parent / "uv")
    _run(uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(HOME / "venv"))
    _run(
        sys.executable, "-m", "pip", "--python", str(PYTHON), "install", "--quiet", "--no-deps", "-r", str(REQUIREMENTS)
    )
    shutil.copy(REQUIREMENTS, marker)


def sources(package: str) -> Path:
    """The folder of a package's source, of the version that is installed. Raises: Unavailable."""
    pin = re.search(rf"^{package}==(\S+)", REQUIREMENTS.read_text(), re.MULTILINE)
    assert pin, package
    folder = HOME / f"{package}-{pin[1]}"
    if not folder.exists():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", package]
        _run(*pip, "--dest", str(HOME), f"{package}=={pin[1]}")
        with tarfile.open(HOME / f"{folder.name}.tar.gz") as archive:
            archive.extractall(HOME, filter="data")
    return folder


def _run(*command: str) -> None:
    try:
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LIMIT_S, check=True)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{command[0]} took over {_LIMIT_S:.0f} s") from None
    except subprocess.CalledProcessError as exc:
        last_lines = (exc.stderr or exc.stdout).strip().splitlines()[-5:]
        raise Unavailable(f"{command[0]} failed with {exc.returncode}: {' | '.join(last_lines)}") from None
