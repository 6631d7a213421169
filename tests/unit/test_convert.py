"""`xylem convert`: options of `vllm serve` as a pools file."""

import shlex

import pytest
import yaml
from typer.testing import CliRunner

from app.cli.convert import converted_from
from app.cli.main import cli
from app.errors import SettingsError
from app.pools.schema import PoolsFile


def pool_of(command: str) -> dict[str, object]:
    conversion = converted_from(shlex.split(command))
    document = yaml.safe_load(conversion.pools)
    PoolsFile.model_validate(document)
    pool: dict[str, object] = document["pools"]["decode-pool-a"]
    return pool


def test_a_command_is_a_pool_with_its_own_keys_and_the_engines_arguments() -> None:
    assert pool_of(
        "A=0 vllm serve Qwen/Qwen3-0.6B --revision v1 -tp 2 --max-num-seqs=32 --tool-call-parser hermes "
        """--kv-cache-dtype fp8 --speculative-config '{"method": "ngram"}' --no-enable-prefix-caching -cc.level 3"""
    ) == {
        "model": "Qwen/Qwen3-0.6B",
        "engine": "vllm",
        "path": "hf://Qwen/Qwen3-0.6B@v1",
        "dialect": "hermes",
        "tensor_parallel_size": 2,
        "max_running": 32,
        "args": {
            "kv_cache_dtype": "fp8",
            "speculative_config": {"method": "ngram"},
            "enable_prefix_caching": False,
            "compilation_config": {"level": 3},
        },
    }


def test_a_folder_stays_one_and_more_names_are_aliases() -> None:
    """The command may be for another host, so the folder isn't looked for."""
    command = "python -m vllm.entrypoints.openai.api_server --model /models/x --served-model-name a b"
    assert pool_of(command) == {"model": "a", "engine": "vllm", "path": "/models/x"}
    assert yaml.safe_load(converted_from(shlex.split(command)).pools)["aliases"] == {"b": {"primary": "a"}}


def test_what_no_pool_has_is_told_and_unknown_options_are_named() -> None:
    result = CliRunner().invoke(
        cli, ["convert", "vllm serve /models/x --api-key sesame --port 8001 --fly -zz --seed 3"]
    )
    assert result.exit_code == 2
    assert "has no such option: --fly, --zz" in result.stderr
    assert "# --api-key: XYLEM_REQUIRE_KEYS=true" in result.stdout
    assert "sesame" not in result.output
    assert "# --port: XYLEM_PORT" in result.stdout
    assert yaml.safe_load(result.stdout)["pools"]["decode-pool-a"]["args"] == {"seed": 3}


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("vllm serve --seed 3", "names no model"),
        ("sglang.launch_server --model-path x", "no `vllm serve` in it"),
    ],
)
def test_a_command_that_cant_be_read_is_refused_with_the_reason(command: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        converted_from(shlex.split(command))


@pytest.mark.parametrize(("command", "settings"), [
    ("vllm serve /m \\\n --max-model-len 32k", {"max_model_len": 32_000}),
    ("vllm serve /m --max-model-len=32K", {"max_model_len": 32_768}),
    ("vllm serve /m --runner pooling --convert embed", {"task": "embed"}),
    ("vllm serve /m --task classify", {"task": "classify"}),
    ("vllm serve /m --runner generate", {}),
])  # fmt: skip
def test_what_scripts_have_is_understood(command: str, settings: dict[str, object]) -> None:
    result = CliRunner().invoke(cli, ["convert", command])
    assert result.exit_code == 0, result.output
    pool = yaml.safe_load(result.stdout)["pools"]["decode-pool-a"]
    assert pool == {"model": "/m", "engine": "vllm", "path": "/m"} | settings


def test_json_without_its_quotes_is_refused_and_variables_are_named() -> None:
    result = CliRunner().invoke(cli, ["convert", "vllm serve /m --speculative-config {method:ngram,tokens:3}"])
    assert (result.exit_code, "in quotes of its own" in result.stderr) == (2, True)
    result = CliRunner().invoke(cli, ["convert", "HF_TOKEN=sesame vllm serve /m"])
    assert "# HF_TOKEN: set it for the workers" in result.stdout
    assert "sesame" not in result.output
