"""Installs the clients into an environment of their own, apart from ours."""

import shutil
import sys
from pathlib import Path

from ops.clients.tried import PACKAGES, REQUIREMENTS
from ops.installing import command, new_environment, unless_same

HOME = Path(".xylem/clients").resolve()
PYTHON = HOME / "venv" / "bin" / "python"
NPM_BIN = HOME / "npm" / "node_modules" / ".bin"


def install(npm: bool) -> None:
    """Installs from PyPI or npm, unless these versions are installed. Raises: Unavailable with the reason."""
    requirements, marker = (
        (PACKAGES, HOME / "npm" / "installed.json") if npm else (REQUIREMENTS, HOME / "venv" / "installed.txt")
    )
    unless_same(requirements, marker, _npm if npm else _python)


def _python() -> None:
    new_environment(HOME / "venv")
    uv = str(Path(sys.executable).parent / "uv")
    command(uv, "pip", "install", "--quiet", "--no-deps", "--python", str(PYTHON), "--requirement", str(REQUIREMENTS))


def _npm() -> None:
    folder = HOME / "npm"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(PACKAGES, folder / "package.json")
    command("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder))
    # npm may not run a package's install scripts.
    command("node", str(folder / "node_modules" / "@anthropic-ai" / "claude-code" / "install.cjs"))
