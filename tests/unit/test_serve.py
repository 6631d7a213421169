"""The pools file that `xylem serve MODEL` stands for, and the GPUs of its workers."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from app.cli.gpus import devices, gpu_shares, worker_counts
from app.cli.model_pools import model_pools
from app.errors import SettingsError
from app.ids import PoolId
from app.pools.engine_options import pool_settings
from app.pools.pools_file import load_pools
from app.pools.schema import Pool


def pool_of(tmp_path: Path, model: str | None, engine: str, *options: str) -> dict[str, Any]:
    """The one pool, which the loader takes."""
    file = tmp_path / "pools.yaml"
    file.write_text(model_pools(model, engine, options, tmp_path))
    load_pools(file)
    (pool,) = yaml.safe_load(file.read_text())["pools"].values()
    return dict(pool)


def test_a_folder_is_served_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    result = {"model": "my-model", "engine": "vllm", "path": str(folder)}
    assert pool_of(tmp_path, str(folder), "vllm") == result
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for spelling in ("my-model", "./my-model/", "~/my-model"):
        assert pool_of(tmp_path, spelling, "vllm") == result


@pytest.mark.parametrize(
    ("model", "name", "path"),
    [
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", "hf://Qwen/Qwen3-0.6B"),
        ("Qwen/Qwen3-0.6B@v1", "Qwen/Qwen3-0.6B", "hf://Qwen/Qwen3-0.6B@v1"),
        ("hf://Qwen/Qwen3-0.6B@main", "Qwen/Qwen3-0.6B", "hf://Qwen/Qwen3-0.6B@main"),
        ("s3://bucket/models/qwen", "qwen", "s3://bucket/models/qwen"),
    ],
)
def test_a_model_of_the_hub_or_a_bucket_is_fetched(tmp_path: Path, model: str, name: str, path: str) -> None:
    assert pool_of(tmp_path, model, "sglang") == {"model": name, "engine": "sglang", "path": path}


def test_the_mock_answers_under_any_name_and_needs_no_model(tmp_path: Path) -> None:
    assert pool_of(tmp_path, "Qwen/Qwen3-0.6B", "mock") == {"model": "Qwen/Qwen3-0.6B", "engine": "mock"}
    assert pool_of(tmp_path, None, "mock")["model"] == "mock"


def test_a_shipped_model_has_its_pools_file_and_takes_options(tmp_path: Path) -> None:
    pool_before = pool_of(tmp_path, "smollm2", "vllm")
    assert pool_before["path"] == str(tmp_path / "models/SmolLM2-135M-Instruct")
    other = pool_of(tmp_path, "smollm2", "vllm", "--max-model-len", "512", "--dtype=bfloat16")
    assert other == pool_before | {"max_model_len": 512, "args": pool_before["args"] | {"dtype": "bfloat16"}}
    with pytest.raises(SettingsError, match="shapes has two pools"):
        model_pools("shapes", "vllm", ["--dtype", "auto"], tmp_path)


@pytest.mark.parametrize("model", ["no-such-folder", "/no/such/folder", "../a/b/c"])
def test_what_is_no_model_is_refused_with_what_would_be_one(tmp_path: Path, model: str) -> None:
    with pytest.raises(SettingsError, match=r"there is no such folder; it may also be organisation/name"):
        model_pools(model, "vllm", [], tmp_path)


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (["--max-model-len", "8192"], {"max_model_len": 8192}),
        (["--context-length=8192", "--tp-size", "2"], {"max_model_len": 8192, "tensor_parallel_size": 2}),
        (["--served-model-name", "m"], {"model": "m"}),
        (["--enforce-eager", "--no-trust-remote-code"], {"args": {"enforce_eager": True, "trust_remote_code": False}}),
        (["--rope-scaling", '{"factor": 2.0}'], {"args": {"rope_scaling": {"factor": 2.0}}}),
        (["--compilation-config.level", "3", "--compilation-config.debug"],
         {"args": {"compilation_config": {"level": 3, "debug": True}}}),
        (["--allowed-media", "a", "b", "--seed", "-1"], {"args": {"allowed_media": ["a", "b"], "seed": -1}}),
        ([], {}),
    ],
)  # fmt: skip
def test_an_engines_options_are_settings_of_the_pool_or_arguments(options: list[str], settings: dict[str, Any]) -> None:
    assert pool_settings(options) == settings


@pytest.mark.parametrize("options", [["8192"], ["-tp", "2"], ["--"], ["--.a", "1"], ["--a", "{"]])
def test_what_is_no_option_is_refused(options: list[str]) -> None:
    with pytest.raises(SettingsError, match=r"is no option|is not YAML"):
        pool_settings(options)


def pool(**settings: Any) -> Pool:
    return Pool.model_validate({"model": "m", "engine": "vllm", "path": "/models/m"} | settings)


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({}, 1),
        ({"tensor_parallel_size": 2, "data_parallel_size": 2}, 4),
        ({"args": {"tensor-parallel-size": 2, "pipeline_parallel_size": 2}}, 4),
        ({"engine": "sglang", "args": {"tp_size": 2}}, 2),
        ({"tensor_parallel_size": 4, "nodes": 2}, 2),
        ({"engine": "mock"}, 0),
    ],
)
def test_a_worker_computes_on_as_many_gpus_as_its_parallelism_says(settings: dict[str, Any], count: int) -> None:
    assert devices(pool(**settings)) == count


@pytest.mark.parametrize(
    ("gpus", "sizes", "shares"),
    [
        ("0123", [1, 1], ["0", "1"]),
        ("0123", [2, 0, 2], ["0,1", None, "2,3"]),
        ("0", [1, 1], [None, None]),
        ("", [1], [None]),
        ("", [], []),
    ],
)
def test_each_worker_has_gpus_of_its_own_where_there_are_enough(
    gpus: str, sizes: list[int], shares: list[str | None]
) -> None:
    assert gpu_shares(list(gpus), sizes) == shares


def test_one_worker_is_started_for_each_gpu_unless_a_number_is_given() -> None:
    pools = {PoolId("a"): pool(), PoolId("b"): pool(tensor_parallel_size=2), PoolId("c"): pool(engine="mock")}
    assert list(worker_counts(pools, None, ["0", "1", "2", "3"]).values()) == [4, 2, 1]
    assert list(worker_counts(pools, None, []).values()) == [1, 1, 1]
    assert list(worker_counts(pools, 0, ["0"]).values()) == [0, 0, 0]
