"""Imported inside vLLM's workers on a CPU, of an engine with stages: makes what a later stage receives into.

vLLM makes it as a model warms up, which is left out on a CPU that compiles nothing; its second stage would end at the
first request.
"""

from functools import wraps
from typing import Any

from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from app.engines.vllm.cores import KeepsItsCores


class ReceivesItsInput(KeepsItsCores):
    """Empty, as the one that it stands for: there is room for one class."""


def _with_room(gather: Any) -> Any:
    @wraps(gather)
    def gathering(self: Any, *args: Any) -> Any:
        if self.intermediate_tensors is None:
            self.intermediate_tensors = self.model.make_empty_intermediate_tensors(
                batch_size=self.max_num_tokens, dtype=self.model_config.dtype, device=self.device
            )
        return gather(self, *args)

    return gathering


GPUModelRunner.sync_and_gather_intermediate_tensors = _with_room(GPUModelRunner.sync_and_gather_intermediate_tensors)
