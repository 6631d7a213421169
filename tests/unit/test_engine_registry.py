"""Engines are found by name, those of other installed packages too."""

import sys
from pathlib import Path

import pytest

from app.engines.mock.engine import MockEngine
from app.pools.engine_registry import engine_names
from app.pools.schema import Pool
from app.runner.engine_factory import create_engine


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with an engine."""
    (tmp_path / "theirs.py").write_text(
        "class TheirEngine:\n    def __init__(self, *given):\n        self.given = given\n"
    )
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[xylem.engines]\ntheirs = theirs:TheirEngine\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "theirs", raising=False)


@pytest.mark.usefixtures("installed")
def test_an_engine_of_another_package_is_a_pools_engine_by_its_name() -> None:
    assert engine_names() == ["mock", "omni", "sglang", "theirs", "trtllm", "vllm"]
    pool = Pool(model="m", engine="theirs")
    engine = create_engine(pool, "10.0.0.1")
    assert type(engine).__name__ == "TheirEngine"
    assert engine.given == (pool, "10.0.0.1")  # type: ignore[attr-defined]


def test_an_engine_that_nobody_has_is_refused_with_those_that_are_there() -> None:
    with pytest.raises(ValueError, match="is none of diffusers, mock, omni, sglang, trtllm, vllm"):
        Pool(model="m", engine="theirs")


def test_a_built_in_engine_is_created_by_its_name() -> None:
    assert isinstance(create_engine(Pool(model="m", engine="mock")), MockEngine)
