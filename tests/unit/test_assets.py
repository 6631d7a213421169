"""`xylem assets`: what the wheel carries for other programs, and that it is carried."""

import tomllib
from pathlib import Path

from typer.testing import CliRunner

from app.cli.assets import Kind, files_of
from app.cli.main import cli
from tests.stack import ROOT


def test_each_kinds_files_are_written_and_none_is_replaced_unasked(tmp_path: Path) -> None:
    for kind in Kind:
        result = CliRunner().invoke(cli, ["assets", kind, str(tmp_path / kind)])
        assert result.exit_code == 0, result.output
        paths = sorted((tmp_path / kind).iterdir())
        assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in files_of(kind)]
        assert paths
    refusal = CliRunner().invoke(cli, ["assets", "acl", str(tmp_path / "acl")])
    assert refusal.exit_code != 0
    assert "redis-acl.conf" in refusal.stderr
    assert CliRunner().invoke(cli, ["assets", "acl", str(tmp_path / "acl"), "--force"]).exit_code == 0


def test_the_wheel_carries_each_kind_where_it_is_looked_for() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    for kind in Kind:
        for path in files_of(kind):
            name = path.relative_to(ROOT).as_posix()
            assert [one for one in wheel["only-include"] if name == one or name.startswith(f"{one}/")], name
            (source,) = [one for one in wheel["sources"] if name.startswith(f"{one}/")]
            assert wheel["sources"][source] == f"app/cli/assets/{kind}"
