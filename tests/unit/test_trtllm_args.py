"""Arguments of TensorRT-LLM from a pool's settings: defaults, YAML, args and overrides, merged deeply."""

from pathlib import Path
from typing import Any

import pytest
import structlog

from app.engines.trtllm.args import TrtllmArgs, engine_args, merged
from app.errors import SettingsError
from app.pools.schema import Pool
from tests.trtllm.contract import contract


def of(args: dict[str, Any] | None = None, **settings: Any) -> TrtllmArgs:
    return engine_args(Pool(model="m", engine="trtllm", args=args or {}, **settings))


def test_later_layers_count_at_every_depth(tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text("kv_cache_config: {free_gpu_memory_fraction: 0.5, dtype: fp8}\nmax_num_tokens: 100\n")
    args = {
        "engine_args": str(file),
        "max_num_tokens": 200,
        "override_engine_args": {"kv_cache_config": {"dtype": "auto"}, "print_iter_log": True},
    }
    fields = of(args, block_size=64).fields
    assert fields["kv_cache_config"] == {
        "event_buffer_max_size": 65_536, "free_gpu_memory_fraction": 0.5, "dtype": "auto", "tokens_per_block": 64,
    }  # fmt: skip
    assert (fields["max_num_tokens"], fields["print_iter_log"], fields["enable_iter_perf_stats"]) == (200, True, True)
    assert merged({"a": {"b": 1}}, {"a": None}, {"a": {"c": 2}}) == {"a": {"c": 2}}
    assert of({"engine_args": {"max_num_tokens": 7}}).fields["max_num_tokens"] == 7


def test_an_engine_traces_where_the_deployment_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The standard variables decide, unless the pool's args say otherwise."""
    assert "otlp_traces_endpoint" not in of().fields
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317")
    args = of()
    assert args.fields["otlp_traces_endpoint"] == "http://collector:4317"
    assert args.environment == {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}
    assert of({"otlp_traces_endpoint": None}).fields["otlp_traces_endpoint"] is None


def test_a_pools_own_settings_are_the_engines() -> None:
    fields = of(max_running=7, max_model_len=512, data_parallel_size=4).fields
    assert (fields["max_batch_size"], fields["max_seq_len"], fields["max_input_len"]) == (7, 512, 512)
    assert (fields["enable_attention_dp"], fields["tensor_parallel_size"]) == (True, 4)
    assert "enable_attention_dp" not in of().fields


@pytest.mark.parametrize(
    ("args", "settings", "named"),
    [
        ({"backend": "tensorrt"}, {}, "args.backend='tensorrt'"),
        ({"env": {"A": 1}}, {}, "args.env"),
        ({"engine_args": "/nowhere.yaml"}, {}, "args.engine_args=/nowhere.yaml"),
        ({"engine_args": 3}, {}, "args.engine_args=3"),
        ({"override_engine_args": []}, {}, "args.override_engine_args"),
        ({"max_batch_size": 3}, {}, "args.max_batch_size=3: the pool's own settings say 64"),
        ({"kv_cache_config": {"tokens_per_block": 64}}, {}, "args.kv_cache_config.tokens_per_block=64"),
        ({"enable_attention_dp": True, "tensor_parallel_size": 8}, {}, "data_parallel_size has to be as much"),
        ({"backend": "autodeploy"}, {"data_parallel_size": 2}, "data_parallel_size=2: AutoDeploy"),
        ({"speculative_config": {"a": 1}}, {"role": "decode"}, "args.speculative_config"),
        ({}, {"tiers": {"host_gb": 1, "disk": "/kv"}}, "tiers.disk=/kv"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(args: dict[str, Any], settings: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingsError) as error:
        of(args, **settings)
    assert error.value.message.startswith(named) or named in error.value.message


def test_the_tier_in_host_memory_is_a_size_in_bytes() -> None:
    fields = of(tiers={"host_gb": 8}).fields
    assert fields["kv_cache_config"]["host_cache_size"] == 8_000_000_000
    assert fields["kv_cache_config"].keys() <= contract()["classes"]["KvCacheConfig"]["fields"].keys()


def test_pools_that_hand_kv_over_have_a_transceiver() -> None:
    assert of(role="decode").fields["cache_transceiver_config"] == {"backend": "NIXL"}
    own_args = {"cache_transceiver_config": {"max_tokens_in_buffer": 9}}
    prefill = of(own_args, role="prefill").fields
    assert prefill["cache_transceiver_config"] == {"backend": "NIXL", "max_tokens_in_buffer": 9}
    assert prefill["disable_overlap_scheduler"]
    assert not {"cache_transceiver_config", "disable_overlap_scheduler"} & set(of().fields)


def test_partial_reuse_is_off_with_a_connector_unless_the_pool_says_otherwise() -> None:
    connector = {"kv_connector_config": {"connector_module": "kvbm.trtllm_integration.connector"}}
    assert of(connector).fields["kv_cache_config"]["enable_partial_reuse"] is False
    assert of({**connector, "kv_cache_config": {"enable_partial_reuse": True}}).fields["kv_cache_config"][
        "enable_partial_reuse"
    ]
    assert "enable_partial_reuse" not in of().fields["kv_cache_config"]


def test_what_autodeploy_does_not_take_is_dropped_with_a_warning() -> None:
    with structlog.testing.capture_logs() as logs:
        args = of({"backend": "autodeploy", "tensor_parallel_size": 2, "max_num_tokens": 9, "scheduler_config": {}})
    assert args.autodeploy
    assert args.fields["max_num_tokens"] == 9
    assert not {"tensor_parallel_size", "scheduler_config"} & set(args.fields)
    assert [log["argument"] for log in logs] == ["scheduler_config", "tensor_parallel_size"]


@pytest.mark.parametrize("role", ["both", "prefill", "decode"])
def test_all_that_is_set_here_is_in_the_contract(role: str) -> None:
    classes = contract()["classes"]
    fields = of({"kv_connector_config": {}}, role=role, data_parallel_size=2).fields
    assert set(fields) <= set(classes["TorchLlmArgs"]["fields"])
    assert set(fields["kv_cache_config"]) <= set(classes["KvCacheConfig"]["fields"])
    assert set(fields.get("cache_transceiver_config", ())) <= set(classes["CacheTransceiverConfig"]["fields"])


def test_a_beam_width_of_its_own_is_refused() -> None:
    """The worker searches; an engine with a width of its own would take nothing else."""
    assert of({"max_beam_width": 1}).fields["max_beam_width"] == 1
    with pytest.raises(SettingsError, match=r"args\.max_beam_width=4: has to be 1\. Requests with use_beam_search"):
        of({"max_beam_width": 4})
