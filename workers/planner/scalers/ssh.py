"""Starts and stops systemd's `xylem-worker@<pool>-<number>` on other hosts, over SSH.

Its commands are made of names that the pools file has checked, and of nothing that a client sends.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from app.errors import ScalingFailed
from app.ids import PoolId
from app.messages.lease import Worker
from app.planner.desired import Desired

_CONNECT_S = 5
_TIMEOUT_S = 30.0
_UP = {"active", "activating", "reloading"}  # the others end, or have ended


class Unit(Struct, frozen=True):
    """A place for a worker."""

    destination: str  # as `ssh` has it
    host: str  # by its own name
    name: str
    state: str  # systemd's ActiveState
    pid: int  # 0: it has no process


class SshScaler:
    def __init__(self, slots: Mapping[PoolId, Mapping[str, int]], config: Path | None) -> None:
        """`slots`: by pool and destination, how many workers there may be. `config`: of ssh; None: its own."""
        self._slots, self._config = slots, config

    async def scale(self, pool: PoolId, target: Desired, workers: Sequence[Worker]) -> None:
        slots = self._slots[pool]
        unit_lists = await asyncio.gather(*(self._units(pool, *slot) for slot in slots.items()), return_exceptions=True)
        units = [unit for each in unit_lists if not isinstance(each, BaseException) for unit in each]
        start, stop = changes(units, target, workers)
        outcomes = await asyncio.gather(
            *(self._systemctl("start", unit) for unit in start),
            *(self._systemctl("stop", unit) for unit in stop),
            return_exceptions=True,
        )
        for error in (*unit_lists, *outcomes):
            if isinstance(error, BaseException):
                raise error

    async def close(self) -> None:
        pass

    async def _units(self, pool: PoolId, destination: str, count: int) -> list[Unit]:
        """Raises: ScalingFailed."""
        names = [f"xylem-worker@{pool}-{number}.service" for number in range(1, count + 1)]
        output = await self._ssh(
            destination, f"uname -n && systemctl show --property=Id,ActiveState,MainPID {' '.join(names)}"
        )
        host, _, rest = output.partition("\n")
        units = []
        for block in rest.strip().split("\n\n"):
            of = dict(line.partition("=")[::2] for line in block.splitlines())
            if not {"Id", "ActiveState", "MainPID"} <= of.keys():
                raise ScalingFailed(f"{destination}: systemctl shows {block!r}")
            units.append(Unit(destination, host, of["Id"], of["ActiveState"], int(of["MainPID"])))
        return units

    async def _systemctl(self, verb: str, unit: Unit) -> None:
        """Runs systemctl, without waiting for a model to load or a worker to drain. Raises: ScalingFailed."""
        await self._ssh(unit.destination, f"systemctl {verb} --no-block {unit.name}")

    async def _ssh(self, destination: str, command: str) -> str:
        """The command's output. Raises: ScalingFailed."""
        own = () if self._config is None else ("-F", str(self._config))
        argv = ("ssh", *own, "-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_S}", "--", destination, command)
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
            )
        except OSError as exc:
            raise ScalingFailed(f"ssh: {exc.strerror}") from exc
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                out, err = await process.communicate()
        except TimeoutError:
            raise ScalingFailed(f"{destination}: no answer within {_TIMEOUT_S:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            last = err.decode(errors="replace").strip().rpartition("\n")[2]
            raise ScalingFailed(f"{destination}: {command.partition(' ')[0]} ended with {process.returncode}: {last}")
        return out.decode(errors="replace")


def changes(units: Sequence[Unit], target: Desired, workers: Sequence[Worker]) -> tuple[list[Unit], list[Unit]]:
    """The units to be started, and those to be stopped.

    Started on the host with the fewest. Stopped: those whose worker has no lease yet, then those that the plan names,
    and no others. Workers with a lease that aren't on `units` count, too: their host doesn't answer, or they were
    started by hand.
    """
    up = [unit for unit in units if unit.state in _UP]
    places = {(unit.host, unit.pid): unit for unit in units if unit.pid}
    units_by_worker = {
        worker.id: unit for worker in workers if (unit := places.get((worker.host, worker.pid))) is not None
    }
    there = len(up) + len(workers) - len(units_by_worker)
    start: list[Unit] = []
    free = [unit for unit in units if unit.state in ("inactive", "failed")]
    while there + len(start) < target.workers and free:
        on = [unit.destination for unit in (*up, *start)]
        first = min(free, key=lambda unit: on.count(unit.destination))
        free.remove(first)
        start.append(first)
    leased_units = list(units_by_worker.values())
    stop = [unit for unit in up if unit not in leased_units] + [
        units_by_worker[id_] for id_ in target.drain if units_by_worker.get(id_) in up
    ]
    return start, stop[: max(0, there - target.workers)]
