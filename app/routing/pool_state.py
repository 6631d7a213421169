"""Decides which of a pool's workers sleep, wake and change their weights, and in which order. Pure."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from app.errors import PoolAsleep, RequestError
from app.ids import WorkerId
from app.messages.lease import Lease


def awake(leases: Iterable[Lease]) -> list[Lease]:
    """Leases of the workers that take requests, or will by themselves."""
    return [lease for lease in leases if not lease.state.asleep and not lease.state.paused]


def sleeps(awake_others: int, keep_awake: int) -> bool:
    """Whether a worker that starts in a pool that sleeps goes to sleep, too."""
    return awake_others >= keep_awake


def to_sleep(leases: Sequence[Lease], choice: Sequence[WorkerId], keep_awake: int) -> list[WorkerId]:
    """The workers of `choice` that have to go to sleep: paused ones, then those with the fewest requests first.

    `leases`: of the whole pool. So many are left out that `keep_awake` stay awake.
    """
    paused_ids = [le.worker.id for le in leases if le.state.paused and not le.state.asleep and le.worker.id in choice]
    candidates = [lease for lease in awake(leases) if lease.worker.id in choice]
    candidates.sort(key=lambda lease: (lease.load.running + lease.load.waiting, lease.worker.id))
    staying = len(awake(leases)) - len(candidates)
    count = max(0, len(candidates) - max(0, keep_awake - staying))
    return paused_ids + [lease.worker.id for lease in candidates[:count]]


def to_wake(leases: Sequence[Lease]) -> list[WorkerId]:
    """The sleeping ones, the one that wakes soonest first: after level 2 weights have to be loaded."""
    sleeping = [lease for lease in leases if lease.state.asleep and not lease.state.changing]
    return [lease.worker.id for lease in sorted(sleeping, key=lambda le: (le.state.asleep, le.worker.id))]


def waves(
    leases: Sequence[Lease], version: str, *, rolling: bool, keep_awake: int | None = None
) -> list[list[WorkerId]]:
    """The workers that have to change their weights: those of one wave at once, one wave after the other.

    Rolling, one at a time, or as many as leave `keep_awake` of them. Those that serve nobody now are in the first wave.
    Raises: RequestError when so many can't stay awake.
    """
    outdated_leases = sorted((le for le in leases if le.state.weights != version), key=lambda le: le.worker.id)
    if not rolling:
        return [[lease.worker.id for lease in outdated_leases]] if outdated_leases else []
    up = awake(leases)
    if keep_awake is not None and keep_awake >= len(up) and up:
        raise RequestError(f"keep_awake={keep_awake}: of {len(up)} awake workers one has to leave.", param="keep_awake")
    size = 1 if keep_awake is None else max(1, len(up) - keep_awake)
    idle = [lease.worker.id for lease in outdated_leases if lease not in up]
    busy = [lease.worker.id for lease in outdated_leases if lease in up]
    split = [busy[i : i + size] for i in range(0, len(busy), size)]
    return [idle, *split] if idle else split


def why_none(leases: Sequence[Lease]) -> PoolAsleep | None:
    """The reason why none of these takes requests, if it is that all of them sleep."""
    if leases and all(lease.state.asleep for lease in leases):
        return PoolAsleep(retry_after_s=1)
    return None


def allowed(path: str, folder: Path | None) -> None:
    """Raises: RequestError unless the path, with links resolved, is below `folder`."""
    if folder is None:
        raise RequestError("No weights are loaded from disk here: XYLEM_WEIGHTS_FOLDER is not set.", param="path")
    if not Path(path).is_absolute() or not Path(path).resolve().is_relative_to(folder.resolve()):
        raise RequestError(f"path={path!r}: has to be below XYLEM_WEIGHTS_FOLDER.", param="path")
