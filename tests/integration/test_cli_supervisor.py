"""The supervisor with real processes: nothing is left behind, and a death is told."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from app.cli.supervisor import Component, Died, Interrupted, Supervisor
from tests.stack import wait_until


def _shell(script: str, *, rank: int = 0, grace_s: float = 5) -> Component:
    return Component(f"part{rank}", ["/bin/sh", "-c", script], os.environ, lambda _: True, rank, grace_s)


def _pid(component: Component) -> int:
    assert component.process is not None
    return component.process.pid


def _pid_in(file: Path) -> int:
    wait_until(lambda: file.exists() and file.read_text().strip(), f"{file} written")
    return int(file.read_text())


def _gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def _signal_soon(number: signal.Signals) -> Callable[[int], bool]:
    """A readiness probe that sends this process a signal: the way a Ctrl-C comes in the middle of a start."""

    def probe(_: int) -> bool:
        os.kill(os.getpid(), number)
        return False

    return probe


def test_leaving_ends_what_a_component_left_behind(tmp_path: Path) -> None:
    """vLLM's engine processes are grandchildren, and one may outlive its worker."""
    with Supervisor(tmp_path / "logs") as supervisor:
        supervisor.start(_shell(f"trap '' TERM; sleep 600 & echo $! > {tmp_path}/pid; trap - TERM; wait"))
        grandchild = _pid_in(tmp_path / "pid")
    wait_until(lambda: _gone(grandchild), "the grandchild is gone", 2)


def test_who_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    """A drain has a limit."""
    with Supervisor(tmp_path) as supervisor:
        stubborn = _shell("trap '' TERM; echo on; while :; do sleep 0.1; done", grace_s=0.5)
        supervisor.start(stubborn)
        wait_until(lambda: supervisor.log_file(stubborn).read_text(), "the trap is set")
        supervisor.wait_ready(stubborn)
        began = time.monotonic()
    assert time.monotonic() - began < 4
    assert _gone(_pid(stubborn))


def test_ranks_stop_one_after_the_other(tmp_path: Path) -> None:
    """A stream may end before its worker goes, and a worker before the store."""
    order = tmp_path / "order"
    with Supervisor(tmp_path) as supervisor:
        for rank in (1, 0):
            stop = f"sleep 0.{4 - 3 * rank}; echo {rank} >> {order}; exit"
            part = _shell(f"trap '{stop}' TERM; echo on; while :; do sleep 0.05; done", rank=rank)
            supervisor.start(part)
            wait_until(lambda part=part: supervisor.log_file(part).read_text(), "the trap is set")  # type: ignore[misc]
    assert order.read_text().split() == ["0", "1"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_start_stops_everything(number: signal.Signals, tmp_path: Path) -> None:
    """The process's own handlers are back afterwards."""
    before = signal.getsignal(number)
    part = _shell("sleep 600")
    part.is_ready = _signal_soon(number)
    with pytest.raises(Interrupted), Supervisor(tmp_path) as supervisor:
        supervisor.start(part)
        supervisor.wait_ready(part)
    assert _gone(_pid(part))
    assert signal.getsignal(number) == before


def test_a_death_during_the_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    """The user who starts a system should not need to look for its logs."""
    part = _shell("echo no such model; exit 3")
    part.is_ready = lambda _: False
    with pytest.raises(Died, match=r"(?s)part0 ended with 3.*no such model"), Supervisor(tmp_path) as supervisor:
        supervisor.start(part)
        supervisor.wait_ready(part)


def test_what_ends_again_and_again_is_started_after_longer_pauses_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower, or one worker, in a crash loop ends no stream. What has run for a while is started at once."""
    monkeypatch.setattr("app.cli.supervisor._EARLY_S", 3.0)
    monkeypatch.setattr("app.cli.supervisor._PAUSE_S", 0.2)
    monkeypatch.setattr("app.cli.supervisor._LONGEST_PAUSE_S", 0.8)
    starts = tmp_path / "starts"
    looping = _shell(f"echo x >> {starts}; [ $(wc -l < {starts}) = 1 ] && sleep 3.2; exit 1")
    steady = _shell("sleep 600", rank=1)
    pauses: list[float] = []

    def look() -> None:
        pauses.append(looping.pause_s)
        if len(starts.read_text().split()) >= 7:
            raise Interrupted

    with pytest.raises(Interrupted), Supervisor(tmp_path / "logs") as supervisor:
        supervisor.start(looping)
        supervisor.start(steady)
        wait_until(starts.exists, "it has begun")
        pid = _pid(steady)
        supervisor.watch(look)
    assert sorted(set(pauses)) == [0.0, 0.2, 0.4, 0.8]
    assert pauses == sorted(pauses)
    assert _pid(steady) == pid


def test_what_waits_to_be_started_again_is_retired_and_stopped_at_once(tmp_path: Path) -> None:
    """Its process is gone, and its number may be another's."""
    looping, steady = _shell("exit 1"), _shell("sleep 600", rank=1)

    def look() -> None:
        if looping.start_at and not looping.retiring:
            supervisor.retire(looping, 60)
        elif not supervisor.has(looping):
            raise Interrupted

    began = time.monotonic()
    with pytest.raises(Interrupted), Supervisor(tmp_path / "logs") as supervisor:
        supervisor.start(looping)
        supervisor.start(steady)
        supervisor.watch(look)
    assert time.monotonic() - began < 30
    assert _gone(_pid(steady))


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux'")
def test_components_die_with_a_killed_supervisor(tmp_path: Path) -> None:
    """SIGKILL leaves no time for stopping anything."""
    script = (
        "import os, pathlib, time\n"
        "from app.cli.supervisor import Component, Supervisor\n"
        f"with Supervisor(pathlib.Path({str(tmp_path)!r})) as s:\n"
        "    part = Component('part', ['sleep', '600'], os.environ, lambda _: True, 0)\n"
        "    s.start(part)\n"
        f"    pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(part.process.pid))\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script]) as supervisor:
        try:
            part = _pid_in(tmp_path / "pid")
        finally:
            supervisor.kill()
    wait_until(lambda: _gone(part), "the component is gone", 5)
