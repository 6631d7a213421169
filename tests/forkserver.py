"""Engines' processes as forks of one that has imported what they run: each import takes longer than loading a model."""

import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, spawn
from typing import Any

import pytest

from tests.forks import ENGINES, READ_AT_IMPORT, keep_imports

# An engine's idle threads spin, on cores that other tests need.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}

_servers: dict[str, forkserver.ForkServer] = {}


def _take(environment: dict[str, str]) -> None:
    keep_imports()
    os.environ.clear()
    os.environ.update(environment)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(environment.get("OMP_NUM_THREADS", "1")))


_prepare = spawn.get_preparation_data


class _Environment:
    """The environment of whoever pickles it, for whoever unpickles it: a fork has that of the server otherwise."""

    def __reduce__(self) -> tuple[Callable[..., None], tuple[dict[str, str]]]:
        return _take, (dict(os.environ),)


def _prepared(name: str) -> dict[str, Any]:
    """A fork's own processes are its forks: it would begin another server."""
    return _prepare(name) | {"environment": _Environment(), "start_method": "fork"}


def _here(inspect: Callable[[], Any]) -> Any:
    """Asks what vLLM wants to know of a model's class, for CUDA's sake in a process that imports all of vLLM."""
    with warnings.catch_warnings(action="ignore"):
        return inspect()


@contextmanager
def forks_of(engine: str) -> Iterator[None]:
    """SGLang and vLLM want them spawned. Whatever starts an engine meanwhile starts this one."""
    previous_method, choose = multiprocessing.get_start_method(allow_none=True), multiprocessing.set_start_method
    with pytest.MonkeyPatch.context() as patch:
        server = _server(engine)
        for name, value in _ONE_THREAD.items():
            patch.setenv(name, value)
        for name in ("ensure_running", "get_inherited_fds", "connect_to_new_process"):
            patch.setattr(forkserver, name, getattr(server, name))
        patch.setattr(spawn, "get_preparation_data", _prepared)
        choose("forkserver", force=True)
        patch.setattr(multiprocessing, "set_start_method", lambda *_, **__: None)
        if engine == "vllm":
            patch.setattr("vllm.v1.engine.utils.get_mp_context", lambda: multiprocessing.get_context("forkserver"))
            patch.setattr("vllm.model_executor.models.registry._run_in_subprocess", _here)
        yield
    choose(previous_method, force=True)


def _server(engine: str) -> forkserver.ForkServer:
    """The fork server of this engine: it runs until this process ends."""
    if engine not in _servers:
        server = _servers[engine] = forkserver.ForkServer()
        server.set_forkserver_preload([__name__, *ENGINES[engine]])
        with pytest.MonkeyPatch.context() as patch:
            for name, value in READ_AT_IMPORT[engine].items():
                patch.setenv(name, value)
            server.ensure_running()
    return _servers[engine]
