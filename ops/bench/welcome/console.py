"""Faults of the console's pages that keep people from using them, as axe finds them."""

from pathlib import Path
from typing import Any

from ops.bench.console import measured
from ops.bench.parts import Say
from ops.bench.size import Size


def console(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Opens each page in both schemes, on a screen and on a phone. Raises: AssertionError without Chromium."""
    return {"axe_serious": measured(directory, size, say)["axe_serious"]}
