"""LoRA adapters of the mock engine: other weights make other answers."""

import asyncio
from pathlib import Path

from xxhash import xxh3_64_digest

from app.engines.loaded_adapters import LoadedAdapters
from app.engines.mock.args import MockArgs
from app.errors import AdapterFailed

WEIGHTS = "adapter_model.safetensors"


class MockAdapters(LoadedAdapters[bytes]):
    """Each is known by a digest of its weights, which the sampler's context begins with."""

    def __init__(self, args: MockArgs) -> None:
        super().__init__(args.max_adapters)
        self._args = args

    async def add(self, name: str, path: Path) -> None:
        """Raises: AdapterFailed."""
        await asyncio.sleep(self._args.adapter_load_s / self._args.speedup)
        if self._args.fails_on_adapter is not None and name.startswith(self._args.fails_on_adapter):
            raise AdapterFailed(f"The adapter '{name}' is one that fails to load.")
        self.is_new(name)  # one that is there is read again
        try:
            self._by_name[name] = xxh3_64_digest(await asyncio.to_thread((path / WEIGHTS).read_bytes))
        except OSError as exc:
            raise AdapterFailed(f"The adapter '{name}' has no readable weights: {exc.strerror}.") from exc

    def remove(self, name: str) -> None:
        self._by_name.pop(name, None)

    def weights(self, name: str | None) -> bytes:
        """Nothing of the model as it is. Raises: AdapterFailed."""
        return self.find(name) or b""
