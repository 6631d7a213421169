"""The label of a request's salt, by which a store tells a tenant's blocks: vLLM gives it to tiers."""

from typing import Any

from vllm.config import VllmConfig

from app.kv_store.salts import label_of

LABEL = "xylem_label"


def labelled(extra_args: dict[str, Any] | None, salt: str | None, config: VllmConfig) -> dict[str, Any] | None:
    """The `extra_args` of a request with that salt, if the pool has a store, and the salt is a tenant's."""
    label = label_of(salt)
    if not label or not _has_store(config):
        return extra_args
    arguments = extra_args or {}
    return arguments | {"kv_transfer_params": arguments.get("kv_transfer_params", {}) | {LABEL: label}}


def _has_store(config: VllmConfig) -> bool:
    if config.kv_transfer_config is None:
        return False
    extra = config.kv_transfer_config.kv_connector_extra_config
    inner = (one.get("kv_connector_extra_config", {}) for one in extra.get("connectors", ()))
    return any("secondary_tiers" in one for one in (extra, *inner))
