"""SGLang's processes: told from those of others, watched, and ended.

SGLang itself, when one of them dies, kills this process with all its children, and when it is closed, all children of
this process, also those that others have started.
"""

import asyncio
import atexit
import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import structlog

from app.engines.log_level import root_logger_kept
from app.errors import EngineFailed, SettingsError

if TYPE_CHECKING:
    from sglang.srt.entrypoints.engine import Engine

_END_S = 10.0  # how long a killed process may take to vanish

log = structlog.get_logger(__name__)


def own_sigquit() -> None:
    """SGLang's processes send it when one of them fails; unheard it would end this process without a word.

    Their end is seen here anyhow (`Processes.watch`). Only the main thread can say so.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGQUIT, _heard)


def _heard(_signal: int, _frame: object) -> None:
    log.error("sglang failed", action="sigquit_heard")


def remove_files(ports: Any) -> None:
    """Removes the files of its sockets, and of what `stats` reads: SGLang leaves them. `ports`: its PortArgs."""
    from sglang.srt.managers.load_snapshot import shm_path_for

    sockets = [name for name in vars(ports).values() if isinstance(name, str) and name.startswith("ipc://")]
    for path in (*(name.removeprefix("ipc://") for name in sockets), shm_path_for(ports.instance_id)):
        Path(path).unlink(missing_ok=True)


class Processes:
    """Processes that `load` has started, and no other children of this process."""

    def __init__(self) -> None:
        self.found: list[psutil.Process] = []
        self._watched: dict[int, asyncio.AbstractEventLoop] = {}  # by file descriptor

    async def start(self, fields: dict[str, Any]) -> "Engine":
        """`fields`: of its ServerArgs. Raises: SettingsError, EngineFailed; then none of its processes is left."""
        from sglang.srt.entrypoints.engine import Engine

        try:
            return await asyncio.to_thread(self.load, partial(Engine, **fields), fields["log_level"])
        except (ValueError, TypeError, AssertionError, ImportError, NotImplementedError, OSError) as exc:
            raise SettingsError(f"SGLang refuses these engine arguments: {exc}") from exc
        except Exception as exc:
            raise EngineFailed(f"SGLang did not start: {exc}") from exc

    def load(self, make: "Callable[[], Engine]", level: str) -> "Engine":
        """`level`: of its log. Blocks. Raises what SGLang raises; then none of its processes is left."""
        others = set(psutil.Process().children(recursive=True))
        try:
            logging.getLogger("sglang").setLevel(level.upper())
            with root_logger_kept():
                engine = make()
            engine.loop.close()  # made for this thread, and for calls that the adapter doesn't use
            asyncio.set_event_loop(None)
            self.found = [psutil.Process(pid) for pid in engine.get_all_child_pids()]
        except BaseException:
            self.found = self._started(others)
            self.end()
            raise
        atexit.unregister(engine.shutdown)
        manager = engine.tokenizer_manager  # None where another host leads
        if manager is not None and (watchdog := manager._subprocess_watchdog) is not None:  # noqa: SLF001 (it sends SIGQUIT)
            watchdog.stop()
        return engine

    def watch(self, on_death: Callable[[], None]) -> None:
        """`on_death` is called on this loop when one of them has ended by itself."""
        loop = asyncio.get_running_loop()
        for process in self.found:
            try:
                fd = os.pidfd_open(process.pid)
            except ProcessLookupError:
                loop.call_soon(on_death)
                continue
            self._watched[fd] = loop
            loop.add_reader(fd, self._ended, fd, on_death)

    def end(self) -> None:
        """Kill them, as SGLang does, and wait. Blocks."""
        processes = {child for process in self.found for child in _children(process)} | set(self.found)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, _END_S)

    def forget(self) -> None:
        """Stops watching the processes: what ends from here on is meant to."""
        for fd in list(self._watched):
            self._unwatch(fd)

    def _ended(self, fd: int, on_death: Callable[[], None]) -> None:
        self._unwatch(fd)
        on_death()

    def _unwatch(self, fd: int) -> None:
        self._watched.pop(fd).remove_reader(fd)
        os.close(fd)

    @staticmethod
    def _started(others: set[psutil.Process]) -> list[psutil.Process]:
        """Multiprocessing's resource tracker belongs to this process."""
        processes = [process for process in psutil.Process().children(recursive=True) if process not in others]
        return [process for process in processes if not _is_tracker(process)]


def _is_tracker(process: psutil.Process) -> bool:
    try:
        return "resource_tracker" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        children: list[psutil.Process] = process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return children
