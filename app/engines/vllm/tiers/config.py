"""vLLM's connector for a pool's tiers, alone or beside the one that hands KV over."""

from pathlib import Path
from typing import Any

import vllm
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector
from vllm.platforms import current_platform

from app.errors import SettingsError
from app.kv_store.block_store import open_store
from app.kv_store.fingerprint import fingerprint
from app.kv_store.seal import read_key
from app.messages.kinds import TierUse
from app.pools.schema import Pool, Tiers

OFFLOADING = "OffloadingConnector"
BOTH = "MultiConnector"
_CPU_SPEC = {"spec_name": "CpuMemorySpec", "spec_module_path": "app.engines.vllm.tiers.cpu_memory"}
_GPU_SPEC = {"spec_name": "TieringOffloadingSpec"}
_STORE = {"type": "StoreTier", "module_path": "app.engines.vllm.tiers.store"}


def with_tiers(pool: Pool, tiers: Tiers, fields: dict[str, Any], transfer: dict[str, Any] | None) -> dict[str, Any]:
    """The KVTransferConfig's fields. `fields`: vLLM's arguments; `transfer`: without tiers. Raises: SettingsError."""
    ours = _connector(pool, tiers, fields)
    if transfer is None:
        return ours
    return {
        "kv_connector": BOTH,
        "kv_role": "kv_both",
        "kv_load_failure_policy": transfer.get("kv_load_failure_policy", "recompute"),
        # What we ourselves read of the connector that hands over; vLLM reads the inner one.
        "kv_connector_extra_config": transfer.get("kv_connector_extra_config", {}) | {"connectors": [transfer, ours]},
    }


def tells_of_tiers(config: VllmConfig) -> bool:
    """Whether a connector keeps KV and has events of it: that of the pool's tiers, or one that its args name."""
    if config.kv_transfer_config is None:
        return False
    connector = KVConnectorFactory.get_connector_class(config.kv_transfer_config)
    if issubclass(connector, MultiConnector):
        connectors = [inner for inner, _ in connector._get_connector_classes_and_configs(config)]  # noqa: SLF001 (nothing public has them)
    else:
        connectors = [connector]
    return any(each.take_events is not KVConnectorBase_V1.take_events for each in connectors)


def without_tiers(extra_args: dict[str, Any] | None, use: TierUse) -> dict[str, Any]:
    """The `extra_args` of a request that loads from these tiers only."""
    arguments = extra_args or {}
    less: dict[str, Any] = {"kv_load_tiers": [{"medium": "CPU"}]} if use == "host" else {"max_load_tokens": 0}
    return arguments | {"kv_transfer_params": arguments.get("kv_transfer_params", {}) | less}


def _connector(pool: Pool, tiers: Tiers, fields: dict[str, Any]) -> dict[str, Any]:
    extra: dict[str, Any] = {
        **(_CPU_SPEC if current_platform.is_cpu() else _GPU_SPEC),
        "cpu_bytes_to_use": round(tiers.host_gb * 1e9),
        "self_describing_kv_events": True,
        "offload_prompt_only": False,  # answers are the beginning of the next turn's prompt
    }
    if tiers.disk is not None:
        extra["secondary_tiers"] = [_store(pool, tiers, tiers.disk, fields)]
    return {"kv_connector": OFFLOADING, "kv_role": "kv_both", "kv_connector_extra_config": extra}


def _store(pool: Pool, tiers: Tiers, url: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Checked here, where an error names the setting: vLLM would open it in a process of its own."""
    open_store(url)
    if tiers.key_file is not None:
        read_key(tiers.key_file)
    try:
        model = fingerprint(pool.model_dir)
    except OSError as exc:
        raise SettingsError(f"path={pool.model_dir}: {exc}") from exc
    depends = [fields.get(name) for name in ("quantization", "kv_cache_dtype", "hf_overrides", "attention_backend")]
    return {
        **_STORE,
        "url": url,
        "namespace": repr((model, vllm.__version__, current_platform.device_type, depends)),
        "key_file": str(Path(tiers.key_file).absolute()) if tiers.key_file else "",
        "locality": "REMOTE" if tiers.is_shared else "LOCAL",
    }
