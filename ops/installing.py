"""Packages that are fetched into folders of their own, apart from ours."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from ops.bench.processes import Unavailable

_LIMIT_S = 900.0


def unless_same(requirements: Path, marker: Path, fetch: Callable[[], None]) -> None:
    """Fetches them if the marker is not of these. Raises: Unavailable with the reason."""
    if not marker.exists() or marker.read_bytes() != requirements.read_bytes():
        fetch()
        shutil.copy(requirements, marker)


def command(*words: str, env: Mapping[str, str] | None = None) -> None:
    """Raises: Unavailable with the end of what it says when it fails."""
    try:
        subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LIMIT_S, check=True,
            env=os.environ | (env or {}),
        )  # fmt: skip
    except OSError as exc:
        raise Unavailable(f"{words[0]}: {exc.strerror}") from exc
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{words[0]} took over {_LIMIT_S:.0f} s") from None
    except subprocess.CalledProcessError as exc:
        last_lines = (exc.stderr or exc.stdout).strip().splitlines()[-5:]
        raise Unavailable(f"{words[0]} failed with {exc.returncode}: {' | '.join(last_lines)}") from None


def pip(*words: str, env: Mapping[str, str] | None = None) -> None:
    """Raises: Unavailable."""
    command(sys.executable, "-m", "pip", *words, env=env)


def new_environment(folder: Path) -> None:
    """Makes a virtual environment, instead of one that is there. Raises: Unavailable."""
    uv = str(Path(sys.executable).parent / "uv")
    command(uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder))
