"""Figures that vLLM gives of its tiers with its statistics: bytes that were loaded, and the time that it took."""

from collections.abc import Iterator, Mapping
from typing import Any

_LOADED, _LOAD_S = "vllm:kv_offload_load_bytes", "vllm:kv_offload_load_time"  # from host memory
_READ, _READ_S = "vllm:kv_offload_tiering_read_bytes", "vllm:kv_offload_tiering_read_time"  # from the store, into it


_KEPT = 0.9  # of the sums so far, with each new figure: the last ten or so count


class TierFigures:
    """Sums that fade."""

    def __init__(self) -> None:
        self._loaded = self._load_s = 0.0  # bytes and seconds, from host memory
        self._read = self._read_s = 0.0  # from the store

    @property
    def host_bytes_per_s(self) -> float:
        return self._loaded / self._load_s if self._load_s else 0.0

    @property
    def store_bytes_per_s(self) -> float:
        return self._read / self._read_s if self._read_s else 0.0

    def add(self, of_connector: Mapping[str, Any]) -> None:
        """Another connector's figures are ignored."""
        data = of_connector.get("data")
        if not isinstance(data, Mapping):
            return
        if size := _total(data, _LOADED):
            self._loaded, self._load_s = self._loaded * _KEPT + size, self._load_s * _KEPT + _total(data, _LOAD_S)
        if read := _total(data, _READ):
            self._read, self._read_s = self._read * _KEPT + read, self._read_s * _KEPT + _total(data, _READ_S)


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
    """The sum of all labels' values."""
    return float(sum(data.get(name, {}).values()))
