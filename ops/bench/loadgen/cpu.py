"""CPU time and memory of processes under test with all their children, and of the machine."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Reading:
    """Seconds since the processes, or the machine, began."""

    cpu_s: Mapping[str, float]  # by part of the system
    memory: Mapping[str, int]  # bytes
    busy_s: float
    stolen_s: float

    @classmethod
    def take(cls, watch: Mapping[str, Sequence[int]]) -> "Reading":
        """`watch`: process ids by part. A process that has ended counts no more."""
        cpu_s, memory = {}, {}
        for part, ids in watch.items():
            times, sizes = zip(*[_of(process) for process in _families(ids)], strict=True) if ids else ((), ())
            cpu_s[part], memory[part] = sum(times), sum(sizes)
        machine = psutil.cpu_times()
        idle = machine.idle + machine.iowait + machine.steal
        return cls(cpu_s, memory, sum(machine) - machine.guest - machine.guest_nice - idle, machine.steal)


def _families(ids: Iterable[int]) -> set[psutil.Process]:
    families: set[psutil.Process] = set()
    for id_ in ids:
        process = psutil.Process(id_)
        families |= {process, *process.children(recursive=True)}
    return families


def _of(process: psutil.Process) -> tuple[float, int]:
    try:
        times = process.cpu_times()
        return times.user + times.system, process.memory_info().rss
    except psutil.NoSuchProcess:
        return 0.0, 0
