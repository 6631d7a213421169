"""The processes that vLLM starts from a test, without the ten seconds that each of them needs to import vLLM."""

import os
from functools import cache
from multiprocessing import context, forkserver
from typing import Any

_IMPORTED = ["vllm.v1.engine.core", "vllm.v1.worker.cpu_worker", "vllm.model_executor.models.llama"]


class _Process(context.ForkServerProcess):
    """With the environment of the process that starts it, as a spawned one: the server's own is an older one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._environment = dict(os.environ)

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        super().run()


class _Context(context.ForkServerContext):
    Process = _Process


@cache
def preload_vllm() -> None:
    """From now on, in this process. To be called before a test looks for processes that are new."""
    from vllm.v1.engine import utils

    made = _Context()
    made.set_forkserver_preload(_IMPORTED)
    vars(utils)["get_mp_context"] = lambda: made
    forkserver.ensure_running()
