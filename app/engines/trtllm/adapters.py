"""LoRA adapters in TensorRT-LLM, which reads one when a request first has it, and knows it by a number."""

import asyncio
from itertools import count
from pathlib import Path

from tensorrt_llm.executor.request import LoRARequest

from app.engines.adapter_files import check_adapter
from app.errors import AdapterFailed


class Adapters:
    """Adapters that were added. No number is given twice: under an old one there would be the old KV."""

    def __init__(self, most: int, model: Path) -> None:
        self._most, self._model = most, model
        self._ids = count(1)
        self._requests: dict[str, LoRARequest] = {}

    async def add(self, name: str, path: Path) -> bool:
        """Whether it is new. Raises: AdapterFailed."""
        if name in self._requests:
            return False
        if len(self._requests) >= self._most:
            raise AdapterFailed(f"This engine holds {self._most} adapters, and has as many.")
        await asyncio.to_thread(check_adapter, path, self._model)
        self._requests[name] = LoRARequest(lora_name=name, lora_int_id=next(self._ids), lora_path=str(path))
        return True

    def remove(self, name: str) -> None:
        """TensorRT-LLM puts out by itself what is not asked for any more."""
        self._requests.pop(name, None)

    def request(self, name: str | None) -> LoRARequest | None:
        """None: the model as it is. Raises: AdapterFailed."""
        if name is None:
            return None
        if name not in self._requests:
            raise AdapterFailed(f"The adapter '{name}' is not loaded here.")
        return self._requests[name]
