"""Imported inside vLLM's core on a CPU: the core computes itself, without a worker process beside it.

vLLM's own choice on a CPU is a worker process, and both wait for each other in a loop that never sleeps: the core
during each step, the worker for a second after one. That is a core for waiting, beside those that compute. vLLM wants
it for OpenMP's environment, which says which cores an engine has; the affinity of the core's main thread, from which
all threads that compute inherit it, says the same.
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
