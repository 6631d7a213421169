"""The clients that `make clients` tries, by its lists."""

from pathlib import Path

import pytest

from ops.bench.agents.comply import summed
from ops.clients import tried
from ops.clients.tried import CLIENTS, EXAMPLES, HERE, Client, pinned
from tests.stack import ROOT

GUIDE = (ROOT / "docs" / "guide" / "clients.md").read_text()


@pytest.mark.parametrize("client", [*CLIENTS, *EXAMPLES], ids=lambda client: client.script)
def test_the_guide_names_each_client_in_the_version_that_is_tried(client: Client) -> None:
    assert f"| `{client.package}` | {client.version} | {client.tried} |" in GUIDE


def test_each_script_is_a_client_and_each_client_a_script() -> None:
    assert {path.stem for path in HERE.glob("with_*.py")} == {f"with_{client.script}" for client in CLIENTS}
    assert GUIDE.count("\n| `") == len(CLIENTS) + len(EXAMPLES)


def test_versions_are_those_of_the_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, packages = tmp_path / "lock.txt", tmp_path / "package.json"
    lock.write_text("# lock\na-b==1.2 ; python_version < '3.12'\n    # via c==3\nd[x]==2\ne==3rc1\n")
    packages.write_text('{"dependencies": {"@f/g": "4.0.0"}}')
    monkeypatch.setattr(tried, "LISTS", {"clients": lock, "npm": packages})
    assert pinned("clients") == {"a-b": "1.2", "e": "3rc1"}
    assert pinned("npm") == {"@f/g": "4.0.0"}


def test_what_fails_for_images_alone_does_not_count() -> None:
    checks = {"image-input": "failed", "tool-calling": "failed", "basic-response": "passed", "anth-x": "skipped"}
    assert summed(checks) == {"llm_comply_failed": 1, "llm_comply": checks}
