"""The usage that is recorded after faults, against the answers that clients got."""

from pathlib import Path
from typing import Any

from ops.bench.parts import Say
from ops.bench.processes import figure_of
from ops.bench.size import Size

_FAULTS, _QUICK_FAULTS = 60, 6


def measured(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Measures it by `make chaos`. Raises: Unavailable."""
    size.leaves("faults under load, which `make chaos` has")
    faults = _FAULTS if size is Size.FULL else _QUICK_FAULTS
    say(f"{faults} faults under load")
    arguments = ["--faults", str(faults)]
    return {"usage_error": figure_of("tests.chaos", arguments, directory, "usage_error", fails=True)}
