"""The usage that is recorded after faults, against the answers that clients got."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from ops.bench.parts import Say
from ops.bench.processes import Unavailable
from ops.bench.size import Size

_FAULTS, _QUICK_FAULTS = 60, 6
_LONGEST_S = 3600


def measured(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Measures it by `make chaos`. Raises: Unavailable."""
    size.leaves("faults under load, which `make chaos` has")
    faults = _FAULTS if size is Size.FULL else _QUICK_FAULTS
    say(f"{faults} faults under load")
    command = [sys.executable, "-m", "tests.chaos", "--faults", str(faults)]
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "chaos.log").open("wb") as log:
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, timeout=_LONGEST_S, check=False)
    lines = run.stdout.decode().splitlines()
    if not lines:
        raise Unavailable(f"make chaos ended with {run.returncode}; its log: {directory / 'chaos.log'}")
    return {"usage_error": json.loads(lines[-1])["usage_error"]}
