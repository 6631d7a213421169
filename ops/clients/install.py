"""Installs the clients into an environment of their own, apart from ours."""

import shutil
import subprocess
import sys
from pathlib import Path

from ops.bench.processes import Unavailable
from ops.clients.tried import PACKAGES, REQUIREMENTS

HOME = Path(".xylem/clients").resolve()
PYTHON = HOME / "venv" / "bin" / "python"
NPM_BIN = HOME / "npm" / "node_modules" / ".bin"
_LIMIT_S = 900.0


def install(npm: bool) -> None:
    """Installs from PyPI or npm, unless these versions are installed. Raises: Unavailable with the reason."""
    requirements, marker = (
        (PACKAGES, HOME / "npm" / "installed.json") if npm else (REQUIREMENTS, HOME / "venv" / "installed.txt")
    )
    if marker.exists() and marker.read_bytes() == requirements.read_bytes():
        return
    (_npm if npm else _python)()
    shutil.copy(requirements, marker)


def _python() -> None:
    uv = str(Path(sys.executable).parent / "uv")
    _run(uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(HOME / "venv"))
    _run(uv, "pip", "install", "--quiet", "--no-deps", "--python", str(PYTHON), "--requirement", str(REQUIREMENTS))


def _npm() -> None:
    folder = HOME / "npm"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(PACKAGES, folder / "package.json")
    _run("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder))
    # npm may not run a package's install scripts.
    _run("node", str(folder / "node_modules" / "@anthropic-ai" / "claude-code" / "install.cjs"))


def _run(*command: str) -> None:
    try:
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LIMIT_S, check=True)
    except OSError as exc:
        raise Unavailable(f"{command[0]}: {exc.strerror}") from exc
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{command[0]} took over {_LIMIT_S:.0f} s") from None
    except subprocess.CalledProcessError as exc:
        last_lines = (exc.stderr or exc.stdout).strip().splitlines()[-5:]
        raise Unavailable(f"{command[0]} failed with {exc.returncode}: {' | '.join(last_lines)}") from None
