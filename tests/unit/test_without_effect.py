"""Keys of a pool that change nothing."""

from pathlib import Path
from typing import Any

import pytest

from app.api.main import create_app
from app.pools.without_effect import without_effect
from app.settings import Settings
from tests.models import mock
from tests.stack import ROOT

TEMPLATE = ROOT / "tests/chaos/template.jinja"


@pytest.mark.parametrize(("fields", "beside"), [
    ({"endpoints": ["completions"]}, "endpoints: [completions]"),
    ({"task": "embed", "endpoints": ["embeddings", "score"]}, "task: embed"),
    ({"endpoints": ["completions", "messages"]}, ""),
    ({}, ""),
])  # fmt: skip
def test_a_template_needs_an_endpoint_of_chats(fields: dict[str, Any], beside: str) -> None:
    assert beside in (says := without_effect(mock(chat_template=TEMPLATE, **fields)))
    assert bool(beside) == bool(says)
    assert without_effect(mock(**fields)) == ""


def test_a_server_says_so_at_its_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pools.yaml"
    pool = f"{{model: m, engine: mock, chat_template: {TEMPLATE}, endpoints: [completions]}}"
    file.write_text(f"pools: {{texts: {pool}, all: {{model: other, engine: mock}}}}")
    create_app(Settings(pools_file=file, home=tmp_path))
    [line] = [line for line in "".join(capsys.readouterr()).splitlines() if "pool_key_without_effect" in line]
    assert "chat_template has no effect beside endpoints: [completions]" in line
    assert "texts" in line
