"""llm-comply, which tests servers of three APIs for what their clients rely on."""

from pathlib import Path

from ops.bench.agents.comply import IMAGES, measured
from ops.bench.size import Size


def test_llm_comply_finds_nothing_wrong_but_images(tmp_path: Path) -> None:
    """Nothing is skipped."""
    figures = measured(tmp_path / "comply", Size.QUICK, print)
    assert {check: status for check, status in figures["llm_comply"].items() if status != "passed"} == dict.fromkeys(
        IMAGES, "failed"
    )
    assert (len(figures["llm_comply"]), figures["llm_comply_failed"]) == (31, 0)
