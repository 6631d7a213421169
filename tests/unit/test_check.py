"""`xylem check`: lines of mistakes, keys that change nothing, and the schema for editors."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from app.cli.check import SCHEMA
from app.cli.main import cli
from ops.docs.reference import pools_schema
from tests.stack import BIN, ROOT

FILES = sorted([*(ROOT / "ops/pools").glob("*.yaml"), *(ROOT / "app/cli/pools").glob("*.yaml")])


def check(file: Path, text: str) -> Result:
    file.write_text(text)
    return CliRunner().invoke(cli, ["check", str(file)])


@pytest.mark.parametrize(("text", "problems"), [
    ("pools:\n  a:\n    model: m\n    engine: vlm\n    colour: red\n    busy:\n      max_held: -1\n",
     [":4: pools.a.engine='vlm': is none of", ":5: pools.a.colour='red': Extra", ":7: pools.a.busy.max_held=-1"]),
    ("pools:\n  a: {engine: mock}\n", [":2: pools.a.model: Field required"]),
    ("pools:\n  a: {model: m, engine: mock}\n  a.b:\n    model: m\n", [":3: pools.a.b"]),
    ("pools:\n  a: {model: m, engine: mock}\naliases:\n  m: {primary: m}\n", [":4: aliases.m: there is a model"]),
    ("pools:\n  a: {model: m, engine: mock}\npipelines:\n  p:\n    stages:\n      - {model: m}\n      - {model: x}\n",
     [":7: pipelines.p.stages.1.model=x"]),
    ("pools:\n  a: {model: m, engine: vllm}\n", [":2: pools.a.path: engine vllm needs a model directory"]),
    ("pools:\n  a: [\n", ["line 3, column 1"]),
    ("[]", ["has to be a mapping"]),
])  # fmt: skip
def test_each_mistake_is_told_with_its_line(tmp_path: Path, text: str, problems: list[str]) -> None:
    file = tmp_path / "pools.yaml"
    result = check(file, text)
    assert result.exit_code == 2
    for problem in problems:
        assert f"{file}{problem}" in result.stderr or f"{file}: not YAML" in result.stderr or problem in result.stderr
        assert problem in result.stderr


def test_what_changes_nothing_is_a_warning_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "pools.yaml"
    result = check(file, "pools:\n  a:\n    model: m\n    engine: mock\n    task: embed\n    dialect: hermes\n")
    assert result.exit_code == 0
    assert f"warning: {file}:6: pools.a.dialect has no effect beside task: embed" in result.stderr
    assert check(file, "pools:\n  a:\n    model: m\n    engine: mock\n").stdout == f"{file} is right\n"


def test_what_pools_share_is_no_mistake_of_those_that_do_not_need_it(tmp_path: Path) -> None:
    text = (
        "pools:\n  a: &both\n    role: prefill\n    model: m\n    engine: mock\n    disagg: {remote_tokens: 9}\n"
        "  b:\n    <<: *both\n    role: decode\n"
    )
    assert check(tmp_path / "pools.yaml", text).stderr == ""
    again = check(tmp_path / "pools.yaml", f"{text}    disagg: {{remote_tokens: 9}}\n")
    assert ":10: pools.b.disagg has no effect beside role: decode" in again.stderr


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.parent.name}-{file.stem}")
def test_no_file_that_comes_with_it_has_keys_without_effect(file: Path) -> None:
    result = CliRunner().invoke(cli, ["check", str(file)])
    assert (result.exit_code, result.stderr) == (0, "")


def test_the_schema_is_that_of_the_code_with_each_key_described() -> None:
    assert SCHEMA.read_text() == pools_schema()
    assert CliRunner().invoke(cli, ["check", "--schema"]).stdout == SCHEMA.read_text()
    document: dict[str, Any] = json.loads(SCHEMA.read_text())
    parts = {"PoolsFile": document, **document["$defs"]}
    assert [
        f"{n}.{k}" for n, part in parts.items() for k, v in part["properties"].items() if not v["description"]
    ] == []


def test_editors_take_what_xylem_takes_and_mark_what_it_refuses(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("pools: {a: {model: m, engine: mock, colour: red}}")
    command = [str(BIN / "check-jsonschema"), "--schemafile", str(SCHEMA)]
    subprocess.run([*command, *map(str, FILES)], check=True, capture_output=True)
    refusal = subprocess.run([*command, str(bad)], check=False, capture_output=True, text=True)
    assert (refusal.returncode, "colour" in refusal.stdout) == (1, True)
