"""Tables of commands: nothing is cut, in a terminal of any width or in a file."""

import io

import pytest
from rich.console import Console
from rich.table import Column

from app.cli.report import listing, out

LIMITS = "requests_per_min=600, tokens_per_min=100000, expires=2027-01-01T00:00:00Z, models=llama-3.3-70b-instruct"


def shown(width: int) -> list[str]:
    table = listing("name", Column("id", no_wrap=True), "tenant", "created", "limits")
    table.add_row("research-key", "key_0123456789abcdef", "research-and-development", "2026-11-28 12:00", LIMITS)
    sink = io.StringIO()
    Console(file=sink, width=width).print(table)
    return sink.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 120, 100_000])
def test_what_does_not_fit_is_folded(width: int) -> None:
    lines = shown(width)
    last = lines[0].index("limits")
    assert "".join(line[last:].strip() for line in lines[1:]).replace(" ", "") == LIMITS.replace(" ", "")
    assert "key_0123456789abcdef" in lines[1]
    assert "…" not in "".join(lines)


def test_a_row_is_one_line_where_the_output_is_no_terminal() -> None:
    """The reader there is a program: `xylem keys list | grep alice`."""
    assert not out.is_terminal
    assert len(shown(out.width)) == 2
