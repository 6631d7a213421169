"""Installs the clients into environments of their own, apart from ours."""

import shutil
import sys
from functools import partial
from pathlib import Path

from ops.clients.tried import LISTS, Place
from ops.installing import command, new_environment, unless_same

HOME = Path(".xylem/clients").resolve()
PYTHON = {place: HOME / place / "bin" / "python" for place in LISTS} | {"npm": HOME / "clients" / "bin" / "python"}
NPM = HOME / "npm"
NPM_BIN = NPM / "node_modules" / ".bin"


def install(place: Place) -> None:
    """Installs from PyPI or npm, unless these versions are installed. Raises: Unavailable with the reason."""
    fetch, marker = (_npm, "installed.json") if place == "npm" else (partial(_python, place), "installed.txt")
    unless_same(LISTS[place], HOME / place / marker, fetch)


def _python(place: Place) -> None:
    new_environment(HOME / place)
    uv = str(Path(sys.executable).parent / "uv")
    python, packages = str(PYTHON[place]), str(LISTS[place])
    command(uv, "pip", "install", "--quiet", "--no-deps", "--python", python, "--requirement", packages)


def _npm() -> None:
    NPM.mkdir(parents=True, exist_ok=True)
    shutil.copy(LISTS["npm"], NPM / "package.json")
    command("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(NPM))
    # npm may not run a package's install scripts.
    command("node", str(NPM / "node_modules" / "@anthropic-ai" / "claude-code" / "install.cjs"))
