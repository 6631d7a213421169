"""The rows of the feature list that are not whole yet."""

from pathlib import Path
from typing import Any

from ops.bench.parts import Say
from ops.bench.size import Size
from ops.docs.features import rows_open, themes


def listed(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Rows neither settled, with a test or a reason, nor given to another issue; each is named."""
    del directory, size
    names = rows_open(themes())
    for name in names:
        say(f"open: {name}")
    return {"rows_open": len(names)}
