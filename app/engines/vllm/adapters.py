"""LoRA adapters in vLLM. Each name gets an id of its own for good: under an old one it would serve the old weights."""

import asyncio
from itertools import count
from pathlib import Path

from vllm.lora.request import LoRARequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from app.engines.adapter_files import check_adapter
from app.errors import AdapterFailed


class Loaded:
    """Adapters that were added: never more than vLLM holds, since it would load an evicted one again with a request.

    If the files are gone by then, that kills the engine; `add_lora` only raises.
    """

    def __init__(self, most: int, model: Path) -> None:
        self.most, self._model = most, model
        self._ids = count(1)
        self._requests: dict[str, LoRARequest] = {}

    async def add(self, engine: AsyncLLM, name: str, path: Path) -> None:
        """Raises: AdapterFailed, EngineDeadError."""
        if name in self._requests:
            return
        if len(self._requests) >= self.most:
            raise AdapterFailed(f"This engine holds {self.most} adapters, and has as many.")
        await asyncio.to_thread(check_adapter, path, self._model)  # vLLM takes narrower weights, and computes nonsense
        request = LoRARequest(name, next(self._ids), str(path))
        try:
            await engine.add_lora(request)
        except EngineDeadError:
            raise
        except Exception as exc:
            await engine.remove_lora(request.lora_int_id)  # it may have got a slot before it broke
            raise AdapterFailed(f"vLLM can't load the adapter '{name}': {exc}") from exc
        self._requests[name] = request

    async def remove(self, engine: AsyncLLM, name: str) -> None:
        """Raises: EngineDeadError."""
        if name in self._requests:
            await engine.remove_lora(self._requests[name].lora_int_id)
            del self._requests[name]

    def request(self, name: str | None) -> LoRARequest | None:
        """None: the model as it is. Raises: AdapterFailed."""
        if name is None:
            return None
        if name not in self._requests:
            raise AdapterFailed(f"The adapter '{name}' is not loaded here.")
        return self._requests[name]
