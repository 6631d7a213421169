"""Gaps of the documentation: operations, pages, options and settings, each named as it is found."""

from pathlib import Path
from typing import Any

from ops.bench.parts import Say
from ops.bench.size import Size
from ops.docs import gaps
from ops.docs.reference import openapi


def pages(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Reads the documentation, and what it is made from."""
    del directory, size
    names = {
        "operations_untagged": gaps.operations_untagged(openapi()),
        "pages_without_group": gaps.pages_without_group(),
        "dynamo_flags_without_row": gaps.dynamo_flags_without_row(),
        "settings_without_description": gaps.settings_without_description(),
    }
    for figure, of in names.items():
        for name in of:
            say(f"{figure}: {name}")
    return {figure: len(of) for figure, of in names.items()}
