"""Finds where a prompt can resume in a cache with several groups of KV blocks: of layers that keep them alike. Pure.

A model with layers of several kinds has several. An engine takes a prompt's leading tokens from its cache up to the
last point at which every group has what the next token needs (vLLM: `find_longest_cache_hit` of its coordinators).
"""

import math
from collections.abc import Mapping, Sequence

from app.ids import PoolId
from app.messages.lease import CacheGroup, Grid, Lease, Worker
from app.pools.schema import Pool


def needed_from(group: CacheGroup, end: int) -> int:
    """The first token of the group's blocks that the token behind `end` needs. `end`: of one of them, in tokens."""
    match group.sees:
        case "all":
            return 0
        case "window":
            return max(0, end - -(-(group.width - 1) // group.block_size) * group.block_size)
        case "chunk":
            return end // group.width * group.width
        case "state":
            return end - group.block_size


def naming(groups: Sequence[CacheGroup]) -> CacheGroup:
    """The group whose events tell all blocks of a prompt: it sees everything; if none does, the first one."""
    return min(groups, key=lambda group: (group.sees != "all", group.block_size, group.number))


def grid(groups: Sequence[CacheGroup]) -> Grid | None:
    """None: blocks of some group end where none ends of the group that names them."""
    size = naming(groups).block_size
    if any(group.block_size % size for group in groups):
        return None
    everywhere = len(groups) == 1 and groups[0].sees == "all"
    return Grid(size, math.lcm(*(group.block_size for group in groups)), everywhere)


def leaves(groups: Sequence[CacheGroup]) -> int:
    """Tokens between a prompt's points, as in `Worker`.

    Engines keep chunks whole, and states only where a step of theirs ends.
    """
    defaults = {"all": 1, "chunk": 1, "window": 0, "state": 0}
    every = [group.every or defaults[group.sees] for group in groups]
    lines = grid(groups)
    return math.lcm(lines.step, *every) if lines is not None and all(every) else 0


def points_left(worker: Worker) -> int:
    """Points from one to the next of those that a prompt leaves in its cache; 0: it leaves the one at its end."""
    lines = grid_of(worker)
    return 1 if lines.everywhere else worker.leaves // lines.step


def names_all(groups: Sequence[CacheGroup]) -> bool:
    """Whether the events of the group that names blocks have all of them: they don't say which are left out."""
    group = naming(groups)
    tokens = group.width - 1 + -(group.width - 1) % group.block_size  # before each point at which windows are kept
    return group.sees in ("all", "chunk") or (group.sees == "window" and 0 < group.every <= tokens)


def grid_of(worker: Worker) -> Grid:
    return worker.grid or Grid(worker.block_size, worker.block_size)


def grids_of(pools: Mapping[PoolId, Pool]) -> dict[PoolId, Grid]:
    """Grids of the pools, as their settings have it: engines may have other blocks."""
    return {name: Grid(pool.block_size, pool.block_size) for name, pool in pools.items()}


def why_by_load(lease: Lease, usual: Grid) -> str:
    """The reason why nobody looks for prompts in its caches, or little is found there; "": they are looked up.

    `usual`: what most workers of its pool have.
    """
    if lease.worker.unindexed:
        return f"this engine's KV events can't be placed ({lease.worker.unindexed}): routing by load only"
    if lease.left_out:
        return "most of this engine's KV events can't be placed: routing by load only"
    if lease.worker.kv_events and grid_of(lease.worker) != usual:
        return "its KV blocks differ from those of most workers of its pool: routing by load only"
    return ""


def blocks_of_step(worker: Worker) -> int:
    """Its blocks from one point at which a prompt may resume to the next."""
    return max(1, grid_of(worker).step // worker.block_size)
