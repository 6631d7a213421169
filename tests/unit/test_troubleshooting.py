"""The guide's table of troubles."""

import re

import pytest

from tests.stack import ROOT

PAGE = (ROOT / "docs/guide/troubleshooting.md").read_text()
SYMPTOMS = [line.split(" | ")[0].removeprefix("| ") for line in PAGE.splitlines() if line.startswith("| ")][2:]
SOURCES = "\n".join(path.read_text() for folder in ("app", "workers") for path in (ROOT / folder).rglob("*.py"))
OTHERS = {  # texts of libraries and of the system
    "neither pip nor uv … finds torch==…+cpu", "port 8000 … is in use", "is too old", "no kernel image is available",
    "Duplicated timeseries in CollectorRegistry", "XYLEM_…",
}  # fmt: skip


@pytest.mark.parametrize("symptom", SYMPTOMS)
def test_what_a_symptom_quotes_is_what_the_code_says(symptom: str) -> None:
    """A part of a text that differs is `…`."""
    for quote in set(re.findall(r"`([^`]+)`", symptom)) - OTHERS:
        assert all(part.strip() in SOURCES for part in quote.split("…")), quote
