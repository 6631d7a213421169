"""LoRA adapters of the mock engine: other weights make other answers."""

import asyncio
from pathlib import Path

from xxhash import xxh3_64_digest

from app.engines.mock.args import MockArgs
from app.errors import AdapterFailed

WEIGHTS = "adapter_model.safetensors"


class Loaded:
    """The adapters that are there, each by a digest of its weights, which the sampler's context begins with."""

    def __init__(self, args: MockArgs) -> None:
        self._args = args
        self._weights: dict[str, bytes] = {}

    async def add(self, name: str, path: Path) -> None:
        """Raises: AdapterFailed."""
        await asyncio.sleep(self._args.adapter_load_s / self._args.speedup)
        if self._args.fails_on_adapter is not None and name.startswith(self._args.fails_on_adapter):
            raise AdapterFailed(f"The adapter '{name}' is one that fails to load.")
        if name not in self._weights and len(self._weights) >= self._args.max_adapters:
            raise AdapterFailed(f"The engine holds {self._args.max_adapters} adapters already.")
        try:
            self._weights[name] = xxh3_64_digest(await asyncio.to_thread((path / WEIGHTS).read_bytes))
        except OSError as exc:
            raise AdapterFailed(f"The adapter '{name}' has no readable weights: {exc.strerror}.") from exc

    def remove(self, name: str) -> None:
        self._weights.pop(name, None)

    def weights(self, name: str | None) -> bytes:
        """Nothing of the model as it is. Raises: AdapterFailed."""
        if name is None:
            return b""
        if name not in self._weights:
            raise AdapterFailed(f"The adapter '{name}' is not loaded here.")
        return self._weights[name]
