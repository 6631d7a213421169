"""A rolling upgrade: a fleet of an older version is replaced process by process under load, and nobody notices."""

from pathlib import Path

import pytest

from tests.chaos.upgrade import BEFORE, LINES, extract, old_fleet, upgraded


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of that commit."""
    path = tmp_path_factory.mktemp("before")
    if not extract(BEFORE, path):
        pytest.skip("a source package and a shallow clone have no history")
    return path


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", ["workers", "replicas"])
def test_nothing_is_lost_when_a_fleet_is_upgraded_under_load(tmp_path: Path, before: Path, first: str) -> None:
    """Streams that others can resume or not, prompts that are computed apart, and a batch."""
    with old_fleet(tmp_path / "fleet", before) as fleet:
        outcome = upgraded(fleet, workers_first=first == "workers")
    assert outcome.report.bad == []
    assert (outcome.report.restarted, outcome.report.leaked_blocks) == (0, 0), (
        "no connection broke before its answer's end"
    )
    assert outcome.report.requests > 50
    assert (outcome.completed, outcome.failed) == (LINES, 0)
