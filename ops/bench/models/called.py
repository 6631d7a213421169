"""Whether public chat templates are rendered right, and the calls that they write are read back."""

from pathlib import Path
from typing import Any

from ops.bench.parts import Say
from ops.bench.size import Size
from ops.templates.check import templates_wrong
from ops.templates.readback import figures, packages_read_back


def templates(_directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Raises: Unavailable."""
    size.leaves("public templates, which `make templates` has")
    say("templates: rendered as transformers does")
    return {"templates_wrong": templates_wrong(size.of(1, 6, 6))}


def readback(_directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Raises: Unavailable."""
    size.leaves("public templates, which `make readback` has")
    say("readback: the templates' own calls")
    return {**figures(packages_read_back())}
