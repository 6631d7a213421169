"""LoRA adapters in vLLM. Each name gets an id of its own for good: under an old one it would serve the old weights."""

import asyncio
from pathlib import Path

from vllm.lora.request import LoRARequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from app.engines.adapter_files import check_adapter
from app.engines.loaded_adapters import LoadedAdapters
from app.errors import AdapterFailed


class VllmAdapters(LoadedAdapters[LoRARequest]):
    """Never more than vLLM holds, since it would load an evicted one again with a request.

    If the files are gone by then, that kills the engine; `add_lora` only raises.
    """

    async def add(self, engine: AsyncLLM, name: str, path: Path) -> None:
        """Raises: AdapterFailed, EngineDeadError."""
        if not self.is_new(name):
            return
        await asyncio.to_thread(check_adapter, path, self._model)  # vLLM takes narrower weights, and computes nonsense
        request = LoRARequest(name, next(self._ids), str(path))
        try:
            await engine.add_lora(request)
        except EngineDeadError:
            raise
        except Exception as exc:
            await engine.remove_lora(request.lora_int_id)  # it may have got a slot before it broke
            raise AdapterFailed(f"vLLM can't load the adapter '{name}': {exc}") from exc
        self._by_name[name] = request

    async def remove(self, engine: AsyncLLM, name: str) -> None:
        """Raises: EngineDeadError."""
        if name in self._by_name:
            await engine.remove_lora(self._by_name[name].lora_int_id)
            del self._by_name[name]
