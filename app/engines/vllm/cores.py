"""Imported inside vLLM's worker on a CPU, where KV is handed over: leaves the engine the cores that it was given.

Two engines on one machine slow each other several times without this: vLLM's connector moves the thread that computes
to the machine's last core, whatever VLLM_CPU_OMP_THREADS_BIND says, and NIXL's progress thread never sleeps.
"""

import sys
from typing import Any

from vllm.distributed.nixl_utils import NixlWrapper
from vllm.platforms import current_platform

_PROGRESS_EVERY_US = 1000  # or sooner, when something comes; NIXL's Python says 0: a whole core, idle or not


class KeepsItsCores:
    """vLLM wants a class; what is to be done is done when this module is imported, before there is a connector."""


def _no_core_for_kv() -> list[list[int]]:
    return []


def _sleepy(make: Any) -> Any:
    def agent(name: str, config: Any) -> Any:
        config.pthrDelay = _PROGRESS_EVERY_US
        return make(name, config)

    return agent


current_platform.discover_numa_topology = _no_core_for_kv
if NixlWrapper is not None:  # else vLLM says that it is missing
    bindings = sys.modules[NixlWrapper.__module__].nixlBind
    bindings.nixlAgent = _sleepy(bindings.nixlAgent)
