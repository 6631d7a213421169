"""Starts processes, watches them, stops them in order, and leaves none behind.

Each component is the leader of a session of its own: Ctrl-C reaches the supervisor only, and killing the group
takes what the component started. On Linux a component also dies when the supervisor is killed.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

from rich.text import Text

from app.cli.report import err
from app.running.ending import end_signals

_TICK_S = 0.1
_UNREADY_GRACE_S = 3.0  # a process that isn't ready has nothing to finish, and a loading engine ignores SIGTERM
_EARLY_S = 10.0  # a process that ends sooner after its start
# Before a process that has ended early is started again: twice as long each time.
_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class Interrupted(Exception):
    """SIGINT or SIGTERM came."""


class Died(Exception):
    """A component ended during the first start."""


@dataclass
class Component:
    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    is_ready: Callable[[int], bool]  # given the process id
    stop_rank: int  # lower ranks are stopped, and waited for, first
    grace_s: float = 30.0  # from SIGTERM to SIGKILL
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    began: float = field(default=0.0, init=False)
    ready: bool = field(default=False, init=False)
    pause_s: float = field(default=0.0, init=False)  # before its last start, if it had ended early
    start_at: float = field(default=0.0, init=False)  # monotonic, of one that has ended and is started again; else 0
    kill_at: float = field(default=0.0, init=False)  # monotonic, of one that is to end; 0: it isn't

    @property
    def retiring(self) -> bool:
        return self.kill_at > 0


class Supervisor:
    """Use as a context manager, on the main thread: leaving the block stops everything."""

    def __init__(self, log_dir: Path, *, verbose: bool = False) -> None:
        self._log_dir, self._verbose = log_dir, verbose
        self._components: list[Component] = []
        self._readers: dict[str, BinaryIO] = {}
        self._signals = 0
        self._old_handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Supervisor":
        self._log_dir.mkdir(parents=True, exist_ok=True)
        for number in end_signals():
            self._old_handlers[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)

    def start(self, component: Component) -> None:
        log = self.log_file(component)
        first = component not in self._components
        with log.open("ab" if component.began else "wb") as sink:
            component.process = subprocess.Popen(
                component.argv,
                env=dict(component.env),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent if _LIBC else None,  # noqa: PLW1509 (no threads here, one system call)
            )
        component.began, component.ready = time.monotonic(), False
        component.kill_at = component.start_at = 0.0
        if first:
            self._components.append(component)
            if self._verbose and component.name not in self._readers:
                self._readers[component.name] = log.open("rb")

    def run_once(self, component: Component, doing: str) -> None:
        """Start it and wait for its end. Raises: Died when it fails, Interrupted."""
        self.start(component)
        if not err.is_terminal:
            err.print(doing)
        with err.status(doing):
            while (code := _running(component).poll()) is None:
                self._tick()
        self._components.remove(component)
        if code:
            raise Died(self._how_it_ended(component))

    def wait_ready(self, *components: Component) -> None:
        """Wait until all are ready, and print when each is. Raises: Died, Interrupted."""
        waiting = {c.name: c for c in components}
        began = time.monotonic()
        with err.status("") as status:
            while waiting:
                self._tick()
                self._check()
                for name in [c.name for c in waiting.values() if _has_become_ready(c)]:
                    del waiting[name]
                status.update(f"starting {', '.join(waiting)} … {time.monotonic() - began:.0f} s")

    def has(self, component: Component) -> bool:
        """Whether it was started, and has not ended for good."""
        return component in self._components

    def retire(self, component: Component, grace_s: float) -> None:
        """Lets it end, within `grace_s` if it is ready, and doesn't start it again by itself. `watch` sees it end."""
        component.kill_at = time.monotonic() + (grace_s if component.ready else _UNREADY_GRACE_S)
        _running(component).terminate()
        err.print(f"{component.name} is to end")

    def watch(self, look: Callable[[], None] = lambda: None) -> None:
        """Restart components that end, until a signal comes. `look` is called again and again. Raises: Interrupted.

        One that ends again and again is started after longer and longer pauses: the others go on, and serve.
        """
        while True:
            self._tick()
            look()
            for component in list(self._components):
                if component.retiring:
                    self._see_end(component)
                elif component.start_at:
                    if time.monotonic() >= component.start_at:
                        self.start(component)
                elif _running(component).poll() is None:
                    _has_become_ready(component)
                else:
                    self._start_later(component)

    def _start_later(self, component: Component) -> None:
        """Has one that has ended started again: at once, unless it had just been started."""
        now = time.monotonic()
        early = now - component.began < _EARLY_S
        pause_s = min(_LONGEST_PAUSE_S, max(_PAUSE_S, 2 * component.pause_s)) if early else 0.0
        component.pause_s = pause_s
        when = f" in {pause_s:g} s" if pause_s else ""
        err.print(f"{self._how_it_ended(component)}\nstarting it again{when}", markup=False, soft_wrap=True)
        _kill_group(component)
        component.ready, component.start_at = False, now + pause_s

    def _see_end(self, component: Component) -> None:
        """Forgets one that is to end once it has, or kills it when its time is over."""
        if not component.start_at:  # else it had ended, and its number may be another's
            if _running(component).poll() is None and time.monotonic() <= component.kill_at:
                return
            _kill_group(component)
        self._components.remove(component)
        err.print(f"{component.name} has ended")

    def log_file(self, component: Component) -> Path:
        return self._log_dir / f"{component.name}.log"

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._signals += 1

    def _tick(self) -> None:
        """Wait a moment, show new log lines. Raises: Interrupted."""
        if self._signals:
            raise Interrupted
        time.sleep(_TICK_S)
        self._show_logs()

    def _check(self) -> None:
        for component in self._components:
            if _running(component).poll() is not None:
                raise Died(self._how_it_ended(component))

    def _show_logs(self) -> None:
        for name, reader in self._readers.items():
            for line in reader:
                err.print(Text.assemble((f"{name:10} ", "dim"), Text.from_ansi(line.decode(errors="replace"))))

    def _how_it_ended(self, component: Component) -> str:
        """Its exit code, and the end of its log."""
        log = self.log_file(component)
        last = "\n".join(f"  {line}" for line in log.read_text(errors="replace").splitlines()[-12:])
        return f"{component.name} ended with {_running(component).returncode}; the end of {log}:\n{last}"

    def _stop(self) -> None:
        self._signals = 0  # from here on a signal means: at once
        with err.status("stopping (Ctrl-C again: at once)"):
            for rank in sorted({c.stop_rank for c in self._components}):
                self._stop_rank([c for c in self._components if c.stop_rank == rank])
        self._show_logs()
        for reader in self._readers.values():
            reader.close()

    def _stop_rank(self, components: list[Component]) -> None:
        components = [component for component in components if not component.start_at]  # the others have ended
        if not components:
            return
        for component in components:
            _running(component).terminate()
        deadline = time.monotonic() + max(c.grace_s if c.ready else _UNREADY_GRACE_S for c in components)
        while any(_running(c).poll() is None for c in components):
            if self._signals or time.monotonic() > deadline:
                break
            time.sleep(_TICK_S)
            self._show_logs()
        for component in components:
            _kill_group(component)


def _running(component: Component) -> subprocess.Popen[bytes]:
    assert component.process is not None, f"{component.name} was not started"
    return component.process


def _has_become_ready(component: Component) -> bool:
    """Check it, unless it was ready before, and print that it is."""
    if not component.ready and component.is_ready(_running(component).pid):
        component.ready = True
        err.print(f"[green]✓[/] {component.name} [dim]{time.monotonic() - component.began:.1f} s[/]")
    return component.ready


def _kill_group(component: Component) -> None:
    """Kill the component and all processes that it has left."""
    process = _running(component)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _die_with_parent() -> None:
    assert _LIBC is not None
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
