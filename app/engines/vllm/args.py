"""vLLM's arguments, from the pool's settings, its `args`, and our defaults."""

import dataclasses
import secrets
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError
from vllm.config import (
    ECTransferConfig,
    KVEventsConfig,
    KVTransferConfig,
    ProfilerConfig,
    StructuredOutputsConfig,
    VllmConfig,
)
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform

from app.engines.base import Node
from app.engines.log_level import log_level
from app.engines.pool_args import check_names, take_environment
from app.engines.ports import free_ports
from app.engines.vllm.cpu_kernels import kernels_need
from app.engines.vllm.cpu_limits import check_experts
from app.engines.vllm.nodes import node_environment, node_fields
from app.engines.vllm.packages import lacks, missing_package
from app.engines.vllm.tiers.config import BOTH, with_tiers
from app.errors import SettingsError
from app.messages.kinds import Role, Task
from app.pools.schema import Pool
from app.tracing.environment import engines_endpoint, engines_environment

_ENVIRONMENT = {
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # fork is unsafe, since a worker has threads
    "VLLM_NO_USAGE_STATS": "1",
}
# vLLM uses one backend for all requests, by default the first request's choice; this one supports all grammars.
_GRAMMARS = {"backend": "xgrammar"}
_DEFAULTS = {"scheduling_policy": "priority"}
_GENERATING = {"enable_prefix_caching": True}
_ENCODING = {"runner": "pooling"}
_TASKS: dict[Task, dict[str, Any]] = {
    "generate": _GENERATING,
    "embed": _ENCODING,
    "classify": _ENCODING,
    # Each sound comes once: nothing is to be found in a cache. With asynchronous scheduling, `times.py` would not know
    # the last token.
    "transcribe": {
        "enable_prefix_caching": False,
        "async_scheduling": False,
        "limit_mm_per_prompt": {"audio": 1},
        "mm_processor_cache_gb": 0,
    },
}
_SEEING = {"enable_prefix_caching": False, "mm_processor_cache_gb": 0}  # each picture comes once

# Even with enforce_eager vLLM compiles a few kernels at first use: the first request for logprobs would stop all
# others for 20 s.
_CPU_EAGER_ENVIRONMENT = {"TORCH_COMPILE_DISABLE": "1"}
# float32 is faster on CPUs without AVX512_BF16; compiling takes minutes.
_CPU_DEFAULTS = {"dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 2 * 2**30}

# After a failed pull the decode task computes the prompt, and reports it; vLLM's "recompute" would do so silently.
_TRANSFER = {"kv_connector": "NixlConnector", "kv_load_failure_policy": "fail"}
_KV_ROLE = {"prefill": "kv_producer", "decode": "kv_consumer"}  # vLLM deprecates "kv_both" where one of these fits
# vLLM's second model runner has another interface for logits processors; `force.py` is written for the first.
_FORCE_ENVIRONMENT = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
_FORCE = "app.engines.vllm.force:ForceBegun"
_TIMES = "app.engines.vllm.times:TellTimes"
_CORES = "app.engines.vllm.cores.KeepsItsCores"
_STAGES = "app.engines.vllm.stages.ReceivesItsInput"
_MOST_RANKS = 16  # data-parallel ones on a host
_ONE_PROCESS = "app.engines.vllm.one_process.OneProcess"


class VllmArgs(NamedTuple):
    environment: dict[str, str]  # to be set where it is not set already
    fields: dict[str, Any]  # of AsyncEngineArgs


def engine_args(pool: Pool, address: str, embeddings: str = "", node: Node | None = None) -> VllmArgs:
    """`embeddings`: the folder of encoded pictures. `node`: this host's, of an engine that spans several.

    Raises: SettingsError naming the bad argument.
    """
    arguments = {name.replace("-", "_"): value for name, value in pool.args.items()}  # as vLLM's own YAML has them
    environment = take_environment(arguments)
    pool_arguments = _fixed(pool, node)
    field_names = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    check_names(arguments, field_names, pool_arguments, "vLLM")
    _check_processes(arguments)
    has_prefixes = _defaults(pool).get("enable_prefix_caching", False)
    arguments.setdefault("kv_events_config", {} if has_prefixes else None)  # null turns them off
    _add_pictures(arguments, pool.role, embeddings)
    hands_over = _add_transfer(arguments, pool)
    arguments.setdefault("structured_outputs_config", {})
    if endpoint := engines_endpoint():
        arguments.setdefault("otlp_traces_endpoint", endpoint)
    makers: dict[str, Callable[..., Any]] = {
        "kv_events_config": partial(
            _kv_events_config,
            several=pool.data_parallel_size > 1 or bool(arguments.get("enable_elastic_ep")),
            first=_first_rank(pool, node),
        ),
        "kv_transfer_config": KVTransferConfig,
        "ec_transfer_config": ECTransferConfig,
        # Of the engine's processes: torch's profiler in the worker's own, with its many threads, has ended it.
        "profiler_config": partial(ProfilerConfig, ignore_frontend=True),
        "structured_outputs_config": partial(StructuredOutputsConfig, **_GRAMMARS),
    }
    for key, make in makers.items():
        if isinstance(arguments.get(key), dict):
            try:
                arguments[key] = make(**arguments[key])
            except (ValidationError, TypeError) as exc:
                raise SettingsError(f"args.{key}={arguments[key]!r}: {exc}") from exc
    _check_answers(arguments, pool.role)
    if hands_over:
        _check_speculation(arguments)
    fields = {
        **_defaults(pool),
        **(_cpu_defaults(pool, arguments) if current_platform.is_cpu() else {}),
        **arguments,
        **pool_arguments,
    }
    eager = current_platform.is_cpu() and fields["enforce_eager"]
    ours = {**_ENVIRONMENT, "VLLM_LOGGING_LEVEL": log_level(), **(_CPU_EAGER_ENVIRONMENT if eager else {})}
    ours |= _runner(fields) | engines_environment()
    if hands_over:
        ours |= _FORCE_ENVIRONMENT | _side_channel(address, pool.data_parallel_size)
        fields["logits_processors"] = [*(fields.get("logits_processors") or ()), _FORCE]
        fields = {**_transfer_defaults(fields), **fields}
    ours |= {} if node is None else node_environment(node)
    if pool.task == "transcribe":
        fields["logits_processors"] = [*(fields.get("logits_processors") or ()), _TIMES]
    return VllmArgs({**ours, **environment}, fields)


def _fixed(pool: Pool, node: Node | None) -> dict[str, Any]:
    """Arguments that the pool's own settings determine."""
    arguments = {
        "model": str(pool.model_dir),
        "served_model_name": pool.model,
        "block_size": pool.block_size,
        "max_num_seqs": pool.max_running,
        "max_model_len": pool.context_len,
        "data_parallel_size": pool.data_parallel_size,
        "enable_prompt_embeds": pool.prompt_embeds,
    }
    if pool.tensor_parallel_size is not None:
        arguments["tensor_parallel_size"] = pool.tensor_parallel_size
    return arguments if node is None else arguments | node_fields(pool, node)


def _check_processes(fields: dict[str, Any]) -> None:
    """Raises: SettingsError."""
    stages = fields.get("pipeline_parallel_size", 1)
    if current_platform.is_cpu() and stages != 1 and not fields.get("enforce_eager", True):
        raise SettingsError("args.enforce_eager=False: on a CPU, torch's compiler fails on stages; leave it out")


def _first_rank(pool: Pool, node: Node | None) -> int:
    """The first of this host's data-parallel ranks."""
    return 0 if node is None else node.rank * pool.data_parallel_size // pool.nodes


def _defaults(pool: Pool) -> dict[str, Any]:
    if pool.role == "encode":
        return _DEFAULTS | _SEEING
    return _DEFAULTS | _TASKS[pool.task]


def _add_pictures(fields: dict[str, Any], role: Role, folder: str) -> None:
    """The ECTransferConfig: encoded pictures are written to the folder, or read from it. Raises: SettingsError."""
    if not folder:
        return
    if "ec_transfer_config" in fields:
        way = (
            "a pool of role encode has no other one" if role == "encode" else "for it, set the pool's embeddings: false"
        )
        raise SettingsError(
            f"args.ec_transfer_config: here, encode workers' pictures come through a connector of ours; {way}"
        )
    fields["ec_transfer_config"] = {
        "ec_connector": "ECExampleConnector",
        "ec_role": "ec_producer" if role == "encode" else "ec_consumer",
        "ec_connector_extra_config": {"shared_storage_path": folder},
    }


def _add_transfer(fields: dict[str, Any], pool: Pool) -> bool:
    """The KVTransferConfig, and whether the pool hands KV over. Raises: SettingsError."""
    transfer = fields.get("kv_transfer_config", {})  # null turns it off
    role = "kv_both" if pool.peers else _KV_ROLE.get(pool.role)
    if role is not None and isinstance(transfer, dict):
        ours = _TRANSFER | {"kv_role": role}
        if current_platform.is_cpu():
            ours["kv_buffer_device"] = "cpu"
        fields["kv_transfer_config"] = ours | transfer
    hands_over = fields.get("kv_transfer_config") is not None
    if pool.tiers is not None:
        fields["kv_transfer_config"] = with_tiers(pool, pool.tiers, fields, fields.get("kv_transfer_config"))
    return hands_over


def _check_answers(fields: dict[str, Any], role: Role) -> None:
    """Raises: SettingsError."""
    own = fields.get("ec_transfer_config")
    if own is not None and own.is_encode_only and role != "encode":
        raise SettingsError(
            "args.ec_transfer_config.ec_role='ec_producer': such an engine answers nothing; role encode is that, and "
            "ec_both encodes and answers"
        )


def _runner(fields: dict[str, Any]) -> dict[str, str]:
    """The environment that chooses vLLM's model runner: on CPUs, the second one has no encoded pictures."""
    return _FORCE_ENVIRONMENT if fields.get("ec_transfer_config") is not None and current_platform.is_cpu() else {}


def _check_speculation(fields: dict[str, Any]) -> None:
    if fields.get("speculative_config"):
        raise SettingsError(
            "args.speculative_config: not in pools with args.kv_transfer_config, peers or a role: with it, vLLM takes "
            "no logits processor, and these pools have one"
        )


def _transfer_defaults(fields: dict[str, Any]) -> dict[str, Any]:
    if current_platform.is_cpu():
        return {"worker_extension_cls": _CORES}
    world = fields.get("tensor_parallel_size", 1) * fields.get("pipeline_parallel_size", 1)
    if world == 1 and fields["kv_transfer_config"].kv_connector in (_TRANSFER["kv_connector"], BOTH):
        # In the engine core's own process, NIXL's threads and the core would wait for each other's Python lock.
        return {"distributed_executor_backend": "mp"}
    return {}


def _cpu_defaults(pool: Pool, names: Collection[str]) -> dict[str, Any]:
    defaults = _CPU_DEFAULTS | kernels_need(pool.model_dir, names)
    if "pipeline_parallel_size" in names:
        return defaults | {"worker_extension_cls": _STAGES}
    if pool.tensor_parallel_size not in (None, 1) or "tensor_parallel_size" in names:
        return defaults
    return defaults | {"distributed_executor_backend": _ONE_PROCESS}


def metrics_environment(fields: dict[str, Any], folder: str) -> dict[str, str]:
    """The environment in which a connector's metrics, kept in the engine core's process, can be read in this one."""
    keeps_some = "LMCache" in repr(fields.get("kv_transfer_config"))
    return {"PROMETHEUS_MULTIPROC_DIR": folder} if keeps_some else {}


def vllm_config(fields: dict[str, Any], *, headless: bool = False) -> VllmConfig:
    """vLLM's configuration: reads the model's files and checks the arguments against them. Blocks.

    `headless`: of a follower. Raises: SettingsError.
    """
    try:
        config = AsyncEngineArgs(**fields).create_engine_config(headless=headless)
    except (ValueError, TypeError, OSError, ImportError, NotImplementedError) as exc:
        if package := missing_package(Path(fields["model"])):
            raise SettingsError(lacks(package)) from exc
        raise SettingsError(_problems(exc)) from exc
    check_experts(config)
    return config


def _problems(exc: Exception) -> str:
    if not isinstance(exc, ValidationError):
        return f"vLLM refuses these engine arguments: {exc}"
    # An error about several arguments has no `loc`, and all of them as input.
    return "; ".join(
        f"args.{'.'.join(map(str, e['loc']))}={e['input']!r}: {e['msg']}" if e["loc"] else e["msg"]
        for e in exc.errors()
    )


def _kv_events_config(*, several: bool, first: int, **options: Any) -> KVEventsConfig:
    """Endpoints on this host unless the pool sets them; replay is always on, to recover lost events.

    `first`: of the ranks here; where others have those before it, vLLM tells nobody here which ports were free.
    """
    if first:  # each rank's port is the first one's + its number
        ports = free_ports(2 * _MOST_RANKS) - first
        defaults = {"endpoint": f"tcp://127.0.0.1:{ports}", "replay_endpoint": f"tcp://127.0.0.1:{ports + _MOST_RANKS}"}
    elif several:  # each rank needs an endpoint of its own: vLLM lets the system choose the ports
        defaults = {"endpoint": "tcp://*:0", "replay_endpoint": "tcp://*:0"}
    else:  # abstract sockets leave no files behind
        path = f"ipc://@xylem-{secrets.token_hex(8)}"
        defaults = {"endpoint": f"{path}-events", "replay_endpoint": f"{path}-replay"}
    return KVEventsConfig(**{"enable_kv_cache_events": True, "publisher": "zmq", **defaults, **options})


def _side_channel(address: str, ranks: int) -> dict[str, str]:
    """Environment variables of the side channel: consecutive ports, one for each rank.

    Decode engines ask there for the NIXL metadata of this engine's ranks.
    """
    return {"VLLM_NIXL_SIDE_CHANNEL_HOST": address, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_ports(ranks))}
