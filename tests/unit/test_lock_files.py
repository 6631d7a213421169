"""What is installed is what was looked at: each package of the lock files has the hashes of its files."""

import re
from pathlib import Path

import pytest

from tests.stack import ROOT

LISTS = sorted(path for path in (ROOT / "requirements").glob("*.txt") if path.stem not in ("torch-cpu", "cpu-excludes"))


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_each_package_of_a_lock_file_has_hashes(path: Path) -> None:
    """Pip then refuses a package without one, also one that is added by hand."""
    lines = [
        line
        for line in path.read_text().replace("\\\n", " ").splitlines()
        if line and not line.lstrip().startswith("#")
    ]
    assert lines
    assert [line for line in lines if not re.match(r"[a-z0-9].*==\S+ .*--hash=sha256:[0-9a-f]{64}", line)] == []


def test_torch_for_cpus_is_named_once() -> None:
    """Its own index alone knows all builds of it: it has no hashes, and so can't be in a file with some."""
    assert re.fullmatch(r"torch==\d+\.\d+\.\d+\+cpu\n", (ROOT / "requirements/torch-cpu.txt").read_text())
    assert not [path for path in LISTS if path.stem != "gpu" and re.search("^torch==", path.read_text(), re.MULTILINE)]
