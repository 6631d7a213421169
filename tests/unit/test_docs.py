"""The documentation says what the code says, and its first page stays short."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from app.cli.main import cli
from app.settings import Settings
from ops.docs import gaps, nav
from ops.docs.reference import FOLDER, PAGES, commands, metrics, page, pools, settings
from tests.helm import VERSIONS

ROOT = Path(__file__).parents[2]


def test_readme_has_at_most_150_lines() -> None:
    """Longer texts belong in docs/."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("name", PAGES)
def test_a_page_that_is_made_from_the_code_is_as_the_code_has_it(name: str) -> None:
    """`make reference` writes it anew where it is not."""
    assert (FOLDER / f"{name}.md").read_text() == page(name)


def test_the_reference_has_each_part_of_the_pools_file() -> None:
    """Parts of parts, too: those of the planner's rules were missing."""
    text = pools()
    for title in ("pools.<name>.scale", "pools.<name>.tiers", "planner", "planner.objectives.<name>"):
        assert f"\n## `{title}`\n" in text


def test_every_setting_is_in_the_reference_and_explained() -> None:
    """Its comment in `app/settings.py` is the explanation."""
    reference = settings()
    assert [name for name in Settings.model_fields if f"| `XYLEM_{name.upper()}` |" not in reference] == []
    assert gaps.settings_without_description() == []


def test_every_key_of_a_pool_and_every_metric_is_explained() -> None:
    """No row of a table ends without a meaning."""
    rows = [row for row in (pools() + metrics()).splitlines() if row.startswith("| `")]
    assert len(rows) > 50
    assert [row for row in rows if row.endswith("|  |")] == []


def commands_below(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    yield name, group
    for word, command in getattr(group, "commands", {}).items():
        yield from commands_below(command, f"{name} {word}")


COMMANDS = dict(commands_below(typer.main.get_command(cli), "xylem"))


def test_every_command_and_option_is_in_the_reference_and_explained() -> None:
    reference = commands()
    parts = {part.partition("`\n")[0]: part for part in re.split(r"^#+ `", reference, flags=re.MULTILINE)[1:]}
    assert len(COMMANDS) > 40
    assert parts.keys() == COMMANDS.keys()
    for name, command in COMMANDS.items():
        assert command.help, name
        for option in command.params:
            line = re.search(
                rf"^\* `[^`]*{re.escape(option.metavar or option.opts[0])}.*`: \S.*", parts[name], re.MULTILINE
            )
            assert line, f"{name} {option.opts[0]} has no explanation"


def test_every_page_of_the_guide_is_in_a_group() -> None:
    assert gaps.pages_without_group() == []
    assert nav.LLMS.read_text() == nav.llms_text()
    assert [next(iter(entry)) for entry in nav.navigation()][:2] == ["Home", "Quickstart"]


def test_every_variable_that_the_texts_name_exists() -> None:
    """Variables that only make and compose read are allowed, too."""
    variables = {f"XYLEM_{name.upper()}" for name in Settings.model_fields} | {
        "XYLEM_TORCH_INDEX", "XYLEM_FLOWER_AUTH", "XYLEM_BENCH_TOOLS", "XYLEM_BENCH_TRACES",
        "XYLEM_BENCH_PROMETHEUS", "XYLEM_OPENAI_SPEC",
    }  # fmt: skip
    variables |= {str(option.envvar) for command in COMMANDS.values() for option in command.params if option.envvar}
    pages = [page for place in ("*.md", "docs/**/*.md", "ops/**/*.md", "app/**/*.md") for page in ROOT.glob(place)]
    pages.remove(ROOT / "CHANGELOG.md")  # it names those of once, too
    mentions = {name for page in pages for name in re.findall(r"\bXYLEM_[A-Z_]*[A-Z]\b", page.read_text())}
    assert "XYLEM_REDIS_URL" in mentions
    assert mentions - variables == set()


def test_every_decision_has_a_number_of_its_own_and_says_it() -> None:
    """Texts name decisions by number."""
    pages = sorted((ROOT / "ops" / "decisions").glob("[0-9]*.md"))
    numbers = [page.name[:4] for page in pages]
    assert len(numbers) == len(set(numbers)) > 50
    assert [page.name for page in pages if not page.read_text().startswith(f"# {page.name[:4]} ")] == []


def test_every_curl_that_sends_json_says_so() -> None:
    """A curl without the header says that it sends a form, which most endpoints refuse."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    commands = [match for page in pages for match in re.findall(r"curl (?:[^\n]*\\\n)*[^\n]*", page.read_text())]
    sending = [command for command in commands if re.search(r" (-d|--data\S*) ", command)]
    assert len(sending) > 5
    assert [command for command in sending if "content-type: application/json" not in command.lower()] == []


def test_the_page_of_tested_versions_has_those_of_the_lock_files() -> None:
    text = (ROOT / "docs/guide/support.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = dict(pin.split("==") for extra in project["optional-dependencies"].values() for pin in extra if "==" in pin)
    for package in ("vllm", "sglang", "diffusers", "vllm-omni", "nixl", "tensorrt-llm"):
        assert f" {pins[package].partition(';')[0]}" in text, package
    runtimes = {
        release
        for lock in ("gpu", "sglang", "trtllm")
        for release in re.findall(
            r"^nvidia-cuda-runtime==(\S+)", (ROOT / f"requirements/{lock}.txt").read_text(), re.MULTILINE
        )
    }
    assert {".".join(release.split(".")[:2]) for release in runtimes} == set(re.findall(r"CUDA ([\d.]+\d)", text))
    assert f"Version {project['version']}." in text
    assert all(f"{minor}" in text for minor in VERSIONS)
