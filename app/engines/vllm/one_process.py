"""Imported inside vLLM's engine core on a CPU: it computes in its own process, without a worker process.

By default vLLM uses a worker process on a CPU, and both processes busy-wait for each other: the engine core during
each step, the worker for a second after one. That takes a whole CPU core. vLLM needs the worker process only to set
OpenMP's environment, which binds an engine to its CPU cores; the affinity of the main thread, inherited by all
computing threads, does the same.
"""

import os

import torch
from vllm.utils.ompmultiprocessing import OMPProcessManager
from vllm.v1.executor.uniproc_executor import UniProcExecutor


class OneProcess(UniProcExecutor):  # type: ignore[misc]  # vLLM has no types
    def _init_executor(self) -> None:
        binding = OMPProcessManager(self.vllm_config)
        if not binding.skip_setup:
            cores = binding.cpu_lists[0]
            os.sched_setaffinity(0, cores)
            torch.set_num_threads(len(cores))
        super()._init_executor()
