"""Chooses the pool, before the worker: a table by context length and latency target."""

from bisect import bisect_left

from app.ids import PoolId
from app.pools.schema import Table


def select(table: Table, tokens: int, target_ms: float | None) -> PoolId:
    """The pool for a context of so many tokens; without a target, the one for the longest target."""
    column = bisect_left(table.tokens, tokens)
    row = len(table.target_ms) if target_ms is None else bisect_left(table.target_ms, target_ms)
    return PoolId(table.pools[row][column])
