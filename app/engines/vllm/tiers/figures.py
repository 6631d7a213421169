"""What vLLM tells of its tiers with its statistics: bytes that were loaded, and the time that it took."""

from collections.abc import Iterator, Mapping
from typing import Any

_LOADED, _LOAD_S = "vllm:kv_offload_load_bytes", "vllm:kv_offload_load_time"  # from host memory
_READ, _READ_S = "vllm:kv_offload_tiering_read_bytes", "vllm:kv_offload_tiering_read_time"  # from the store, into it


class TierFigures:
    """Since the start."""

    def __init__(self) -> None:
        self.loaded_bytes = self.load_s = 0.0  # from host memory
        self.read_bytes = self.read_s = 0.0  # from the store

    @property
    def host_bytes_per_s(self) -> float:
        return self.loaded_bytes / self.load_s if self.load_s else 0.0

    @property
    def store_bytes_per_s(self) -> float:
        return self.read_bytes / self.read_s if self.read_s else 0.0

    def add(self, of_connector: Mapping[str, Any]) -> None:
        """Another connector's figures are ignored."""
        data = of_connector.get("data")
        if not isinstance(data, Mapping):
            return
        self.loaded_bytes += _total(data, _LOADED)
        self.load_s += _total(data, _LOAD_S)
        self.read_bytes += _total(data, _READ)
        self.read_s += _total(data, _READ_S)


def by_connector(stats: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """A connector's own figures, or those of each that a MultiConnector has."""
    if not stats:
        return
    inner = [one for name, one in stats.items() if name.endswith("Connector")]
    if not inner:
        yield stats
    for one in inner:
        yield one.data if hasattr(one, "data") else one


def _total(data: Mapping[str, Any], name: str) -> float:
    """Of all labels' values."""
    return float(sum(data.get(name, {}).values()))
