"""Most names that the installed engines have for a parser are ours; the others are refused with what is nearest."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from app.dialects.names import find_dialect
from ops.engines.surface import PARTS


def test_most_of_them_are_known() -> None:
    """Refused are those whose format is in the model's files, or isn't certain. `test_engine_releases.py` has all."""
    names: set[str] = set()
    for engine, parts in PARTS.items():
        spec = find_spec(engine)
        if spec is None or not spec.submodule_search_locations:
            pytest.skip(f"no {engine}")
        package = Path(spec.submodule_search_locations[0])
        for part in ("tool parsers", "reasoning parsers"):
            names |= parts[part].read(package / parts[part].file)
    unknown = {name for name in names if find_dialect(name) is None}
    assert unknown == {"beam", "hf", "response_template", "hy_v4", "inkling"}
