"""Gaps of the documentation, a list for each measure. Tests hold them empty."""

import json
import re
from typing import Any

from ops.docs.nav import navigation, pages
from ops.docs.reference import ROOT, comments

_GUIDE = "docs/guide"
DYNAMO_OPTIONS = ROOT / "tests/unit/dynamo_options.json"  # of each launcher, as its parsers define them


def operations_untagged(document: dict[str, Any]) -> list[str]:
    """Operations of the OpenAPI document that are not in exactly one family."""
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    return [operation["operationId"] for operation in operations if len(operation.get("tags", [])) != 1]


def pages_without_group() -> list[str]:
    """Pages of the guide that no group of the navigation has."""
    (guide,) = (entry["Guide"] for entry in navigation() if "Guide" in entry)
    in_groups = {path for group in guide if isinstance(next(iter(group.values())), list) for _, path in pages([group])}
    paths = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / _GUIDE).glob("*.md"))]
    return [path for path in paths if path not in in_groups | {f"{_GUIDE}/index.md"}]  # which leads to all of them


def settings_without_description() -> list[str]:
    from app.settings import Settings

    meanings = comments(Settings)
    return [name for name in Settings.model_fields if not meanings.get(name)]


def dynamo_flags_without_row() -> list[str]:
    """Options of Dynamo's launchers that the guide's page has no row for."""
    cells = [line.split(" | ")[0] for line in (ROOT / _GUIDE / "dynamo.md").read_text().splitlines()]
    rows = {option for cell in cells if cell.startswith("| `--") for option in re.findall(r"`(--[a-z0-9-]+)`", cell)}
    launchers: dict[str, list[str]] = json.loads(DYNAMO_OPTIONS.read_text())
    return [option for options in launchers.values() for option in options if option not in rows]
