"""The build context of the images."""

import re

from tests.stack import ROOT


def test_it_has_all_that_an_image_copies() -> None:
    """Builds without a part of the wheel succeed, and lack a module that only a user imports."""
    entries = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for file in (ROOT / "docker").glob("*.Dockerfile"):
        copies = re.findall(r"^COPY (?!--from)(.+) \S+$", file.read_text(), re.MULTILINE)
        sources = {source.partition("/")[0] for line in copies for source in line.split()}
        assert sources <= entries, file.name
        assert {"app", "workers", "xylem.py"} <= sources, file.name
