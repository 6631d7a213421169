"""LoRA adapters in SGLang, which would load one again that a request names after it was removed."""

import asyncio
from pathlib import Path

from sglang.srt.entrypoints.engine import Engine

from app.engines.adapter_files import check_adapter
from app.engines.loaded_adapters import LoadedAdapters
from app.errors import AdapterFailed, EngineFailed

# It computes them as one layer each, and needs these of them.
_TOGETHER = ({"q_proj", "k_proj", "v_proj"}, {"q_proj", "v_proj"}), ({"gate_proj", "up_proj"}, {"gate_proj"})


class SglangAdapters(LoadedAdapters[str]):
    async def add(self, engine: Engine, name: str, path: Path) -> None:
        """Raises: AdapterFailed."""
        if not self.is_new(name):
            return
        layers = await asyncio.to_thread(check_adapter, path, self._model, factors_only=True)
        _check_layers(layers, engine.server_args.lora_target_modules)
        answer = await engine.async_load_lora_adapter(name, str(path))
        if not answer.success:
            if name in engine.tokenizer_manager.pending_lora_unloads:  # some of its processes have it
                await engine.async_unload_lora_adapter(name)
            raise AdapterFailed(f"SGLang can't load the adapter '{name}': {answer.error_message}")
        self._by_name[name] = name

    async def remove(self, engine: Engine, name: str) -> None:
        """Raises: EngineFailed; then it is still there."""
        if name not in self._by_name:
            return
        answer = await engine.async_unload_lora_adapter(name)
        if not answer.success:
            raise EngineFailed(f"SGLang can't unload the adapter '{name}': {answer.error_message}")
        del self._by_name[name]
        engine.tokenizer_manager.lora_ref_cache.pop(name, None)  # what it would load again


def _check_layers(layers: list[str], targets: set[str] | None) -> None:
    """Refuses layers that SGLang checks only at the first request, and dies of. Raises: AdapterFailed."""
    kinds: dict[str, set[str]] = {}
    for layer in layers:
        block, _, kind = layer.rpartition(".")
        kinds.setdefault(block, set()).add(kind)
        if targets and "all" not in targets and kind not in targets:
            raise AdapterFailed(f"The adapter changes '{layer}', which lora_target_modules don't name.")
    for block, there in kinds.items():
        for together, needs in _TOGETHER:
            if there & together and not needs <= there:
                raise AdapterFailed(f"SGLang needs {' and '.join(sorted(needs))} of '{block}', or none beside them.")
