"""SGLang's processes as forks of one that has imported what they run: each import takes longer than loading a model."""

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, spawn
from typing import Any

from tests.forks import ENGINES, READ_AT_IMPORT


def _take(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(environment.get("OMP_NUM_THREADS", "1")))


_prepare = spawn.get_preparation_data


class _Environment:
    """Of whoever pickles it, for whoever unpickles it: a fork has that of the server otherwise."""

    def __reduce__(self) -> tuple[Callable[..., None], tuple[dict[str, str]]]:
        return _take, (dict(os.environ),)


def _prepared(name: str) -> dict[str, Any]:
    """A fork's own processes are its forks: it would begin another server."""
    return _prepare(name) | {"environment": _Environment(), "start_method": "fork"}


@contextmanager
def sglang_forks() -> Iterator[None]:
    """SGLang wants them spawned."""
    choose, chosen = multiprocessing.set_start_method, multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_forkserver_preload([__name__, *ENGINES["sglang"]])
    choose("forkserver", force=True)
    multiprocessing.set_start_method = lambda *_, **__: None  # type: ignore[assignment]
    spawn.get_preparation_data = _prepared
    before = dict(os.environ)
    os.environ.update(READ_AT_IMPORT)
    forkserver.ensure_running()
    os.environ.clear()
    os.environ.update(before)
    try:
        yield
    finally:
        multiprocessing.set_start_method, spawn.get_preparation_data = choose, _prepare
        choose(chosen, force=True)
