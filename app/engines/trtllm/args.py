"""A pool's settings as TensorRT-LLM's: our defaults, the pool's YAML, what its `args` say, and what overrides all."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import structlog
import yaml

from app.engines.pool_args import take_environment
from app.errors import SettingsError
from app.pools.schema import Pool
from app.pools.yaml_loader import read_yaml
from app.tracing.environment import engines_endpoint, engines_environment

# What AutoDeploy decides itself: it refuses these.
_NOT_AUTODEPLOY = """
    build_config scheduler_config tensor_parallel_size pipeline_parallel_size context_parallel_size
    moe_cluster_parallel_size moe_tensor_parallel_size moe_expert_parallel_size enable_attention_dp cp_config
""".split()
_EVENTS = 65_536  # KV events that the engine keeps until we ask for them
_DEFAULTS = {
    "enable_chunked_prefill": True,  # else a prompt of more than max_num_tokens is refused
    "enable_iter_perf_stats": True,
    "guided_decoding_backend": "xgrammar",
    "kv_cache_config": {"event_buffer_max_size": _EVENTS},
}
_LORA = {"lora_config": {"max_lora_rank": 16, "max_loras": 4, "max_cpu_loras": 4}}  # else it has no bounds
_TRANSCEIVER = {"cache_transceiver_config": {"backend": "NIXL"}}
_CONTEXT_ONLY = {"disable_overlap_scheduler": True}  # TensorRT-LLM has none in servers that only compute prompts
# A connector moves whole blocks; part of one, found in the cache, would be counted and not moved.
_CONNECTOR = {"kv_cache_config": {"enable_partial_reuse": False}}

log = structlog.get_logger(__name__)


class TrtllmArgs(NamedTuple):
    autodeploy: bool  # else the PyTorch backend
    environment: dict[str, str]  # to be set where it is not set already
    fields: dict[str, Any]  # of LLM, as plain data


def engine_args(pool: Pool) -> TrtllmArgs:
    """Raises: SettingsError naming the bad argument."""
    arguments = dict(pool.args)
    backend = arguments.pop("backend", "pytorch")
    if backend not in ("pytorch", "autodeploy", "_autodeploy"):
        raise SettingsError(f"args.backend={backend!r}: is neither pytorch nor autodeploy")
    environment = take_environment(arguments)
    theirs = _yaml(arguments.pop("engine_args", {}))
    override = arguments.pop("override_engine_args", {})
    if not isinstance(override, dict):
        raise SettingsError(f"args.override_engine_args={override!r}: must be a mapping")
    pool_fields = merged(theirs, arguments, override)
    fields = merged(_defaults(pool, pool_fields), pool_fields)
    _check_own(pool, pool_fields, autodeploy=backend != "pytorch")
    fields = merged(fields, _own(pool))
    if backend != "pytorch":
        fields = _for_autodeploy(fields)
    return TrtllmArgs(backend != "pytorch", {**engines_environment(), **environment}, fields)


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings are merged at every depth; else the later one counts."""
    out: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(out.get(key), Mapping) and isinstance(value, Mapping)
            out[key] = merged(out[key], value) if both else value
    return out


def _yaml(value: Any) -> dict[str, Any]:
    """TensorRT-LLM's own YAML: a file's name, or what would stand in it."""
    if isinstance(value, dict):
        return value
    if not isinstance(value, str):
        raise SettingsError(f"args.engine_args={value!r}: must be a file's name or a mapping")
    try:
        doc = read_yaml(Path(value).read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise SettingsError(f"args.engine_args={value}: {exc}") from exc
    if not isinstance(doc, dict):
        raise SettingsError(f"args.engine_args={value}: has to be a mapping")
    return doc


def _defaults(pool: Pool, config: Mapping[str, Any]) -> dict[str, Any]:
    return merged(
        _DEFAULTS,
        _TRANSCEIVER if pool.role != "both" else {},
        _CONTEXT_ONLY if pool.role == "prefill" else {},
        _LORA if config.get("enable_lora") else {},
        {"otlp_traces_endpoint": endpoint} if (endpoint := engines_endpoint()) else {},
        _CONNECTOR if config.get("kv_connector_config") is not None else {},
    )


def _own(pool: Pool) -> dict[str, Any]:
    """Arguments that the pool determines. `max_input_len` is 1024 otherwise."""
    own: dict[str, Any] = {
        "model": str(pool.model_dir),
        "max_batch_size": pool.max_running,
        "max_seq_len": pool.context_len,
        "max_input_len": pool.context_len,
        "max_beam_width": 1,
        "kv_cache_config": {"tokens_per_block": pool.block_size},
    }
    if pool.tiers is not None:
        own["kv_cache_config"]["host_cache_size"] = round(pool.tiers.host_gb * 1e9)
    if pool.data_parallel_size > 1:
        own |= {"enable_attention_dp": True, "tensor_parallel_size": pool.data_parallel_size}
    return own


def _check_own(pool: Pool, config: Mapping[str, Any], *, autodeploy: bool) -> None:
    """Raises: SettingsError where the pool's own settings say something else."""
    if pool.tiers is not None and pool.tiers.disk is not None:
        raise SettingsError(f"tiers.disk={pool.tiers.disk}: TensorRT-LLM's own is args.kv_cache_config.disk_cache_path")
    if pool.peers:  # it has no overlap scheduler where it computes prompts for others
        raise SettingsError("peers: a TensorRT-LLM that answers computes no prompts for others")
    if autodeploy and pool.data_parallel_size > 1:
        raise SettingsError(f"data_parallel_size={pool.data_parallel_size}: AutoDeploy has no attention-DP ranks")
    if config.get("enable_attention_dp") and config.get("tensor_parallel_size", 1) != pool.data_parallel_size:
        raise SettingsError(
            f"args.enable_attention_dp with tensor_parallel_size={config.get('tensor_parallel_size', 1)}: "
            f"data_parallel_size has to be as much, and is {pool.data_parallel_size}"
        )
    if pool.role != "both" and config.get("speculative_config") is not None:
        raise SettingsError("args.speculative_config: drafts are not handed over from prefill to decode pools yet")
    if config.get("max_beam_width") not in (None, 1):  # such an engine takes no other requests
        raise SettingsError(
            f"args.max_beam_width={config['max_beam_width']!r}: has to be 1. Requests with use_beam_search are "
            "answered all the same, by the worker's own search"
        )
    for name, value in _own(pool).items():
        _check_same(f"args.{name}", config.get(name), value)


def _check_same(where: str, config: Any, own: Any) -> None:
    if isinstance(own, dict):
        for name, value in own.items():
            _check_same(f"{where}.{name}", config.get(name) if isinstance(config, Mapping) else None, value)
    elif config is not None and config != own:
        raise SettingsError(f"{where}={config!r}: the pool's own settings say {own!r}")


def _for_autodeploy(fields: dict[str, Any]) -> dict[str, Any]:
    for name in _NOT_AUTODEPLOY:
        if fields.get(name) is not None:
            log.warning("trtllm_argument_dropped", argument=name, reason="AutoDeploy takes none")
    return {name: value for name, value in fields.items() if name not in _NOT_AUTODEPLOY}
