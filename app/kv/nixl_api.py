"""NIXL's Python interface, without logging, and with a progress thread that sleeps."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from app.errors import SettingsError

_PAUSE_US = 10_000  # how long the progress thread sleeps if nothing wakes it


def load_nixl() -> Any:
    os.environ.setdefault("NIXL_LOG_LEVEL", "FATAL")  # errors are in the HandoffFailed
    os.environ.setdefault("UCX_LOG_LEVEL", "fatal")
    raise_exceptions = logging.raiseExceptions
    try:
        with _without_torch():
            from nixl import _api
    except ImportError as exc:
        raise SettingsError(f"handoff.nixl needs the package nixl (`pip install xylem-serve[cpu]`): {exc}") from exc
    logging.raiseExceptions = raise_exceptions  # importing nixl turns it off for the whole process
    if not getattr(_api.nixlBind.nixlAgentConfig, "pauses", False):
        _api.nixlBind.nixlAgentConfig = _pausing(_api.nixlBind.nixlAgentConfig)
    return _api


@contextmanager
def _without_torch() -> Iterator[None]:
    """Keeps NIXL from importing a torch for CPUs, only to ask it for its CUDA: two seconds, and 200 MB.

    An engine that needs torch has it by now.
    """
    if "torch" in sys.modules or not _is_for_cpus():
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]  # as Python marks what can't be imported
    try:
        yield
    finally:
        del sys.modules["torch"]


def _is_for_cpus() -> bool:
    try:
        return version("torch").endswith("+cpu")
    except PackageNotFoundError:
        return False


def _pausing(config: Any) -> Any:
    """NIXL's configuration of an agent, with a pause instead of the 0 that its Python interface sets."""

    class Pausing(config):  # type: ignore[misc]
        pauses = True

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, _PAUSE_US if name == "pthrDelay" else value)

    return Pausing
