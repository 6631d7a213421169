"""LoRA adapters in TensorRT-LLM, which reads one when a request first has it, and knows it by a number."""

import asyncio
from pathlib import Path

from tensorrt_llm.executor.request import LoRARequest

from app.engines.adapter_files import check_adapter
from app.engines.loaded_adapters import LoadedAdapters


class TrtllmAdapters(LoadedAdapters[LoRARequest]):
    """Adapters that were added. No number is given twice: under an old one there would be the old KV."""

    async def add(self, name: str, path: Path) -> bool:
        """Whether it is new. Raises: AdapterFailed."""
        if not self.is_new(name):
            return False
        await asyncio.to_thread(check_adapter, path, self._model)
        self._by_name[name] = LoRARequest(lora_name=name, lora_int_id=next(self._ids), lora_path=str(path))
        return True

    def remove(self, name: str) -> None:
        """TensorRT-LLM puts out by itself what is not asked for any more."""
        self._by_name.pop(name, None)
