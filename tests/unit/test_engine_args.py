"""An engine's arguments from a file, the pools file and the command line; and what is shown of them."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from app.cli.main import cli
from app.engines.mock.engine import MockEngine
from app.errors import EngineFailed, SettingsError
from app.pools.engine_args import drafts, masked, merged, read_overrides, with_args
from tests.models import mock
from workers.engine.warm_up import warm_up


def test_mappings_are_merged_at_every_depth_and_lists_replaced() -> None:
    base = {"a": {"b": {"c": 1, "d": 2}, "e": [1, 2]}, "f": 3}
    over = {"a": {"b": {"c": None}, "e": [3]}, "g": {"h": 4}}
    assert merged(base, over) == {"a": {"b": {"c": None, "d": 2}, "e": [3]}, "f": 3, "g": {"h": 4}}
    assert base["a"] == {"b": {"c": 1, "d": 2}, "e": [1, 2]}


def test_the_command_line_goes_before_the_pools_file_and_this_before_the_args_file(tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text("{one: file, two: file, three: {x: file, y: file}}")
    pool = mock(args_file=file, args={"two": "pool", "three": {"x": "pool"}})
    args = with_args(pool, read_overrides(["three.x=7", "four=[a, b]", "five=null"])).args
    assert args == {
        "one": "file", "two": "pool", "three": {"x": 7, "y": "file"}, "four": ["a", "b"], "five": None,
    }  # fmt: skip


def test_the_rest_of_the_pool_stays(tmp_path: Path) -> None:
    pool = mock(path="hf://org/name@v1", routing={"policy": "random"}, max_running=3)
    assert with_args(pool, {"step_ms": 1.0}) == pool.model_copy(update={"args": {"step_ms": 1.0}})


@pytest.mark.parametrize("content", ["[1]", "{a: ", "text", "a: !!int x", "[" * 2000])
def test_a_file_that_is_no_mapping_is_refused_by_name(content: str, tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    with pytest.raises(SettingsError, match=f"args_file={file}"):
        with_args(mock(args_file=file), {})
    file.write_text(content)
    with pytest.raises(SettingsError, match=f"args_file={file}"):
        with_args(mock(args_file=file), {})


@pytest.mark.parametrize("given", ["novalue", "=1", "a..b=1", "a={", "a=!!int x"])
def test_a_wrong_override_is_refused(given: str) -> None:
    with pytest.raises(SettingsError, match="--set"):
        read_overrides([given])


def test_secrets_are_not_shown_and_numbers_of_tokens_are() -> None:
    output = masked(
        {
            "hf_token": "hf_abc", "env": {"AWS_SECRET_ACCESS_KEY": "s", "API-KEY": "k"}, "max_num_batched_tokens": 512,
            "endpoint": "redis://user:pw@host/0", "tokens": ["a"], "path": Path("/x"),
        }
    )  # fmt: skip
    assert output == {
        "hf_token": "***", "env": {"AWS_SECRET_ACCESS_KEY": "***", "API-KEY": "***"}, "max_num_batched_tokens": 512,
        "endpoint": "redis://***@host/0", "tokens": ["***"], "path": "/x",
    }  # fmt: skip


def test_a_workers_configuration_is_printed_without_starting_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XYLEM_POOLS_FILE", str(tmp_path / "pools.yaml"))
    monkeypatch.setenv("XYLEM_ENGINE_ARGS", json.dumps({"answer_tokens": 5}))
    (tmp_path / "engine.yaml").write_text("{step_ms: 7.0, speedup: 3.0}")
    pool = {"model": "m", "engine": "mock", "args_file": str(tmp_path / "engine.yaml"), "args": {"speedup": 2.0}}
    (tmp_path / "pools.yaml").write_text(yaml.safe_dump({"pools": {"p": pool}}))
    result = CliRunner().invoke(cli, ["worker", "p", "--show-config", "--set", "kv_events.port=0"])
    assert result.exit_code == 2
    assert "kv_events.port" in result.stderr  # as if the engine had been started with it
    result = CliRunner().invoke(cli, ["worker", "p", "--show-config", "--set", "handoff.block_bytes=128"])
    config = yaml.safe_load(result.stdout)
    assert (config["pool"]["name"], config["pool"]["block_size"]) == ("p", 32)
    engine = config["engine"]
    assert (engine["step_ms"], engine["speedup"], engine["answer_tokens"]) == (7.0, 2.0, 5)
    assert engine["handoff"]["block_bytes"] == 128
    assert CliRunner().invoke(cli, ["worker", "nope", "--show-config"]).exit_code == 2


@pytest.mark.parametrize("ranks", [1, 2])
async def test_warming_up_computes_a_prompt_on_each_rank(ranks: int) -> None:
    engine = MockEngine(mock(data_parallel_size=ranks, args={"speedup": 1000.0}))
    info = await engine.start()
    try:
        await warm_up(engine, info)
        assert engine.stats().prefill_tokens == ranks * 4 * info.block_size
        assert (engine.stats().running, engine.stats().used_blocks) == (0, 0)
    finally:
        await engine.close()
    with pytest.raises(EngineFailed):
        await warm_up(engine, info)


@pytest.mark.parametrize(
    ("args", "drafting"),
    [
        ({}, False),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}}, True),
        ({"speculative_config": {"method": "draft_model"}}, False),
        ({"speculative_config": "ngram"}, False),
        ({"speculative_algorithm": "NGRAM"}, True),
    ],
)
def test_an_engine_drafts_from_the_prompt_wherever_its_arguments_say_so(
    tmp_path: Path, args: dict[str, object], drafting: bool
) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text(yaml.safe_dump(args))
    assert drafts(mock(args=args)) == drafting
    assert drafts(mock(args_file=file)) == drafting
    assert not drafts(mock(args_file=file, args=dict.fromkeys(args)))
    assert not drafts(mock(args_file=tmp_path / "elsewhere.yaml"))
