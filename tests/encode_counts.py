"""Counts, by a fleet's workers, of pictures that are encoded elsewhere."""

from collections.abc import Mapping

from tests.stack import Stack, all_have_told, leases, metric, wait_until

ALL = ("encoded", "found", "fetched", "lost", "missing")


def counts(s: Stack, *names: str) -> dict[str, float]:
    """Counts of pictures, over all workers."""
    pools = {lease.worker.pool for lease in leases(s)}
    return {name: sum(metric(s, pool, f"pictures_{name}") for pool in pools) for name in names}


def settled(s: Stack) -> dict[str, float]:
    """All of them, with all that has happened until now."""
    all_have_told(s)
    return counts(s, *ALL)


def wait_for(s: Stack, before: Mapping[str, float], **more: int) -> None:
    """Waits until workers have told of so many more pictures."""
    goal = {name: before[name] + n for name, n in more.items()}
    wait_until(lambda: counts(s, *more) == goal, f"{more} more than {before}, now {counts(s, *before)}")
