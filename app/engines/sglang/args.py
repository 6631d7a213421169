"""A pool's settings as SGLang's: what the pool says, what its `args` say, our defaults."""

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import torch
from sglang.srt.server_args import ServerArgs

from app.engines.base import Node
from app.engines.interface import interface_environment
from app.engines.log_level import log_level
from app.engines.pool_args import check_names, take_environment
from app.engines.ports import free_ports
from app.engines.sglang.diffusion import check_settings, diffuses
from app.engines.sglang.events import event_config
from app.errors import SettingsError
from app.pools.schema import Pool
from app.tracing.environment import engines_endpoint, engines_environment

_ENVIRONMENT = {
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",  # for the few tokens that nobody uses: CONTEXT_SPARE
    "SGLANG_RETURN_ORIGINAL_LOGPROB": "1",  # before temperature, as vLLM's are
    # Whoever waits for KV longer than this does without. SGLang's own are 300 s, and 2 · 5 s until a death is noticed.
    "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "30",
    "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "30",
    "SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL": "2",
}
_DEFAULTS = {
    "enable_priority_scheduling": True,
    "schedule_low_priority_values_first": True,
    "priority_scheduling_preemption_threshold": 21,  # its 10, in the numbers that engines get (`engine_requests.py`)
    "grammar_backend": "xgrammar",
    "load_snapshot_publish_interval": 1,  # what `stats` reads
    "watchdog_timeout": 1e9,  # a step that hangs is ours to notice: XYLEM_STALL_S
}
_TRACES = {"SGLANG_TRACE_LEVEL": "2"}  # without a span for each token
# Two threads compute slower than one here, and waiting ones burn a core.
_CPU_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "TORCH_COMPILE_DISABLE": "1"}
_CPU_DEFAULTS = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "mm_attention_backend": "sdpa",
    "dtype": "float32",
    "disable_cuda_graph": True,
    "disable_overlap_schedule": True,
    "sleep_on_idle": True,
    "mem_fraction_static": 0.3,
    "hicache_io_backend": "direct",
    "hicache_mem_layout": "layer_first",
}
_CPU_TOKENS = 16_384  # in the KV cache, or as many as one request may have
# Of pools whose args have enable_lora, since adapters come when SGLang runs; the rank is vLLM's.
_LORA = {
    "max_lora_rank": 16,
    # Its "all" also keeps room for embeddings and the last layer, as wide as the vocabulary.
    "lora_target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
}
_CPU_LORA = {"lora_backend": "torch_native"}
_BATCHED_LORAS = 8  # SGLang's own
CONTEXT_SPARE = 8  # tokens: SGLang takes no prompt and gives no answer to the very end of the context
# True deltas, and tokens are all that is taken: text is made here, for answers of all engines alike.
_FIXED = {"incremental_streaming_output": True, "stream_interval": 1, "skip_server_warmup": True}


class SglangArgs(NamedTuple):
    environment: dict[str, str]  # to be set where it is not set already
    fields: dict[str, Any]  # of ServerArgs


def engine_args(pool: Pool, address: str, node: Node | None = None) -> SglangArgs:
    """`node`: this host's, of an engine that spans several. Raises: SettingsError naming the bad argument."""
    arguments = _by_field(pool.args)
    environment = take_environment(arguments)
    _check(pool, arguments)
    own_arguments = _FIXED | {
        "model_path": str(pool.model_dir),
        "served_model_name": pool.model,
        "host": address,
        "page_size": pool.block_size,
        "max_running_requests": pool.max_running,  # each rank
        # Of a diffusion model's, it wants room for whole blocks.
        "context_length": pool.context_len + CONTEXT_SPARE + (2 * pool.block_size if diffuses(arguments) else 0),
        "dp_size": pool.data_parallel_size,
        "is_embedding": pool.task == "embed",
        "disaggregation_mode": "null" if pool.role in ("both", "encode") else pool.role,
    }
    if pool.role == "encode":
        own_arguments["encoder_only"] = True
    if pool.embeddings:  # else its scheduler would end where rows of one request meet pixels of another
        own_arguments["enable_adaptive_dispatch_to_encoder"] = True
    if pool.tensor_parallel_size is not None:
        own_arguments["tp_size"] = pool.tensor_parallel_size
    if node is not None:
        own_arguments |= {"nnodes": pool.nodes, "node_rank": node.rank, "dist_init_addr": f"{node.leader}:{node.port}"}
    check_names(arguments, ServerArgs.__struct_fields__, own_arguments, "SGLang")
    events = arguments.pop("kv_events_config", {} if pool.task == "generate" else None)  # null turns them off
    if events is not None:
        own_arguments["kv_events_config"] = json.dumps(event_config(pool.data_parallel_size, events))
    on_cpu = not torch.accelerator.is_available()
    if (stages := arguments.get("pp_size", 1)) != 1:
        _check_stages(pool.model_dir, stages)
    if on_cpu and (parts := arguments.get("ep_size", 1)) != 1:
        raise SettingsError(
            f"args.ep_size={parts!r}: on a CPU, SGLang's scheduler ends at the first request, since each "
            "process computes experts as if it had all; tensor_parallel_size alone works"
        )
    if on_cpu and (method := arguments.get("speculative_algorithm")):
        raise SettingsError(f"args.speculative_algorithm={method!r}: on a CPU, SGLang has no kernels for it")
    fields = {
        "log_level": log_level().lower(),
        **_DEFAULTS,
        **(_cpu_defaults(pool) if on_cpu else {}),
        **_handoff(pool, on_cpu=on_cpu),
        **_lora(arguments, on_cpu=on_cpu),
        **_tiers(pool),
        **_tracing(),
        **arguments,
        **own_arguments,
    }
    ours = _ENVIRONMENT | (_CPU_ENVIRONMENT | _cores(pool, stages) if on_cpu else {}) | _node_environment(node)
    return SglangArgs({**ours, **engines_environment(), **_TRACES, **environment}, fields)


def _tracing() -> dict[str, Any]:
    """Raises: SettingsError."""
    endpoint = engines_endpoint()
    return {"enable_trace": True, "otlp_traces_endpoint": endpoint} if endpoint else {}


def _tiers(pool: Pool) -> dict[str, Any]:
    """SGLang's HiCache. Raises: SettingsError."""
    if pool.tiers is None:
        return {}
    if pool.tiers.disk is not None:
        raise SettingsError(f"tiers.disk={pool.tiers.disk}: SGLang has stores of its own, args.hicache_storage_backend")
    return {"enable_hierarchical_cache": True, "hicache_size": math.ceil(pool.tiers.host_gb)}  # whole GB


def tells_of_host_memory(fields: Mapping[str, Any]) -> bool:
    """Whether it has a HiCache, of the pool's tiers or by its args, and its events say what lies there."""
    return bool(fields.get("enable_hierarchical_cache") and fields.get("kv_events_config"))


def _check(pool: Pool, fields: Mapping[str, Any]) -> None:
    """Refuses settings that SGLang itself would not refuse. Raises: SettingsError."""
    if pool.task == "classify":
        raise SettingsError("task=classify: this adapter of SGLang generates and embeds")
    if pool.peers:
        raise SettingsError("peers: an SGLang that answers computes no prompts for others, and takes no KV")
    if pool.role == "prefill" and pool.data_parallel_size > 1 and not fields.get("enable_dp_attention"):
        raise SettingsError(
            f"data_parallel_size={pool.data_parallel_size}: nobody finds the second rank of an SGLang that prefills, "
            "but with args.enable_dp_attention"
        )
    if pool.role == "encode" and (pool.nodes > 1 or (pool.tensor_parallel_size or fields.get("tp_size") or 1) > 1):
        raise SettingsError("role=encode: an SGLang that encodes pictures has one device; start more workers")
    if fields.get("lora_paths"):
        raise SettingsError(f"args.lora_paths={fields['lora_paths']!r}: adapters are added with `xylem lora add`")
    if fields.get("enable_lora") and pool.data_parallel_size > 1:
        raise SettingsError(f"data_parallel_size={pool.data_parallel_size}: SGLang loads adapters with one rank only")
    check_settings(pool, fields)
    if pool.nodes > 1 and pool.data_parallel_size > 1 and not fields.get("enable_dp_attention"):
        raise SettingsError(
            f"nodes={pool.nodes}: SGLang's data-parallel ranks are on one host, but with args.enable_dp_attention"
        )
    if pool.prompt_embeds and (pool.role != "both" or fields.get("speculative_algorithm") or diffuses(fields)):
        raise SettingsError("prompt_embeds: for pools of role both, without drafts, that write token by token")
    if pool.task == "embed":
        _check_pooling(pool.model_dir)
    if fields.get("mm_process_config"):
        raise SettingsError("args.mm_process_config: how pictures are processed is said in the model's own files")


def _by_field(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by ServerArgs' own names; SGLang's YAML and command line have more for some. Raises: SettingsError."""
    names: dict[str, str] = {}
    for field, hint in get_type_hints(ServerArgs, include_extras=True).items():
        for meta in getattr(hint, "__metadata__", ()):
            names |= dict.fromkeys(map(_plain, getattr(meta, "aliases", None) or ()), field)
    arguments: dict[str, Any] = {}
    for key, value in fields.items():
        name = names.get(_plain(key), _plain(key))
        if name in arguments:
            raise SettingsError(f"args.{key}={value!r}: args says {name} twice")
        arguments[name] = value
    return arguments


def _plain(name: str) -> str:
    return name.removeprefix("--").replace("-", "_")


def _check_pooling(model: Path) -> None:
    """SGLang does not look at what a model says of that. Raises: SettingsError."""
    try:
        modes = json.loads((model / "1_Pooling/config.json").read_text())
        kinds = json.loads((model / "config.json").read_text())["architectures"]
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError) as exc:
        raise SettingsError(f"path={model}: its pooling can't be read ({exc!r})") from exc
    pooling = "cls_token" if any("bert" in kind.lower() for kind in kinds) else "lasttoken"
    if not modes.get(f"pooling_mode_{pooling}"):
        says = [mode for mode, is_so in modes.items() if is_so is True and mode.startswith("pooling_mode_")]
        raise SettingsError(f"path={model}: the model has {', '.join(says)}; SGLang would take its {pooling}")


def _cpu_defaults(pool: Pool) -> dict[str, Any]:
    return _CPU_DEFAULTS | {"max_total_tokens": max(_CPU_TOKENS, pool.context_len + 2 * pool.block_size)}


def adapters_held(fields: dict[str, Any]) -> int:
    """Number of LoRA adapters that it has at once; 0: it takes none."""
    if not fields.get("enable_lora"):
        return 0
    return int(fields.get("max_loaded_loras") or fields.get("max_loras_per_batch") or _BATCHED_LORAS)


def _lora(fields: dict[str, Any], *, on_cpu: bool) -> dict[str, Any]:
    if not fields.get("enable_lora"):
        return {}
    return _LORA | (_CPU_LORA if on_cpu else {})


def _handoff(pool: Pool, *, on_cpu: bool) -> dict[str, Any]:
    if pool.role in ("both", "encode"):
        return {}
    arguments: dict[str, Any] = {"disaggregation_transfer_backend": "nixl"}
    if pool.role == "prefill":
        arguments["disaggregation_bootstrap_port"] = free_ports(1)  # where it is met
    elif on_cpu:
        arguments["disaggregation_decode_retraction_backup"] = "cpu_tensor"
    return arguments


def _check_stages(model: Path, stages: Any) -> None:
    """Raises: SettingsError where the last stage would end at the first request."""
    with suppress(OSError, ValueError, KeyError):  # SGLang names these itself
        config = json.loads((model / "config.json").read_text())
        if config["architectures"] == ["LlamaForCausalLM"] and config.get("tie_word_embeddings"):
            raise SettingsError(
                f"args.pp_size={stages!r}: the last stage of SGLang lacks the embeddings of a Llama that ties them "
                "(tie_word_embeddings); tensor_parallel_size works"
            )


def _cores(pool: Pool, stages: int) -> dict[str, str]:
    """SGLang has to be told each rank's, if there are several: the cores this process may use, shared out."""
    ranks = pool.data_parallel_size * (pool.tensor_parallel_size or 1) * stages
    if ranks == 1:
        return {}
    cores, here = sorted(os.sched_getaffinity(0)), ranks // pool.nodes
    shares = [cores[rank::here] or [cores[rank % len(cores)]] for rank in range(here)]
    return {"SGLANG_CPU_OMP_THREADS_BIND": "|".join(",".join(map(str, share)) for share in shares)}


def _node_environment(node: Node | None) -> dict[str, str]:
    """Environment variables of an engine that spans several hosts.

    Without them it guesses the network that leads to the other hosts, and a follower would not come back from loading.
    """
    if node is None:
        return {}
    own = {"SGLANG_HOST_IP": node.address, "SGLANG_BLOCK_NONZERO_RANK_CHILDREN": "0"}
    return own | interface_environment(node.address)


def event_ranks(pool: Pool, node: Node | None) -> range:
    """The data-parallel ranks whose KV events are read on this host."""
    if node is None:
        return range(pool.data_parallel_size)
    if pool.data_parallel_size == 1:  # the leader has them
        return range(0 if node.rank else 1)
    each = pool.data_parallel_size // pool.nodes
    return range(node.rank * each, (node.rank + 1) * each)
