"""Imported inside vLLM's worker on a CPU with KV transfer: keeps the engine on its own cores.

Without this, two engines on one machine slow each other down several times: vLLM's connector moves the computing
thread to the machine's last core, against VLLM_CPU_OMP_THREADS_BIND, and NIXL's progress thread never sleeps.
"""

import sys
from typing import Any

from vllm.distributed.nixl_utils import NixlWrapper
from vllm.platforms import current_platform

_PROGRESS_EVERY_US = 1000  # the progress thread's longest sleep; NIXL's Python sets 0, which takes a whole core


class KeepsItsCores:
    """Empty: vLLM wants a class. Importing this module has the effect, before there is a connector."""


def _no_core_for_kv() -> list[list[int]]:
    return []


def _sleepy(make: Any) -> Any:
    def agent(name: str, config: Any) -> Any:
        config.pthrDelay = _PROGRESS_EVERY_US
        return make(name, config)

    return agent


current_platform.discover_numa_topology = _no_core_for_kv
if NixlWrapper is not None:  # else vLLM reports that NIXL is missing
    bindings = sys.modules[NixlWrapper.__module__].nixlBind
    bindings.nixlAgent = _sleepy(bindings.nixlAgent)
