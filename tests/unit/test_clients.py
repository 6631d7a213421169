"""The clients that `make clients` tries, by its lists."""

import pytest

from ops.bench.agents.comply import summed
from ops.clients.tried import CLIENTS, HERE, PACKAGES, REQUIREMENTS, Client, pinned
from tests.stack import ROOT

GUIDE = (ROOT / "docs" / "guide" / "clients.md").read_text()


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.script)
def test_the_guide_names_each_client_in_the_version_that_is_tried(client: Client) -> None:
    version = pinned(REQUIREMENTS.read_text(), PACKAGES.read_text())[client.package]
    assert f"| `{client.package}` | {version} | {client.tried} |" in GUIDE


def test_each_script_is_a_client_and_each_client_a_script() -> None:
    assert {path.stem for path in HERE.glob("with_*.py")} == {f"with_{client.script}" for client in CLIENTS}
    assert GUIDE.count("\n| `") == len(CLIENTS)


def test_versions_are_those_of_both_files() -> None:
    lock_text = "# lock\na-b==1.2 ; python_version < '3.12'\n    # via c==3\nd[x]==2\ne==3rc1\n"
    assert pinned(lock_text, '{"dependencies": {"@f/g": "4.0.0"}}') == {"a-b": "1.2", "e": "3rc1", "@f/g": "4.0.0"}


def test_what_fails_for_images_alone_does_not_count() -> None:
    checks = {"image-input": "failed", "tool-calling": "failed", "basic-response": "passed", "anth-x": "skipped"}
    assert summed(checks) == {"llm_comply_failed": 1, "llm_comply": checks}
