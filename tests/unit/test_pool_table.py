"""Choice of the pool for a length and a target."""

import pytest

from app.pools.schema import Table
from app.routing.pool_table import select

TABLE = Table(
    tokens=[1000, 8000], target_ms=[200, 1000], pools=[["fast", "fast", "long"], ["a", "b", "long"], ["c", "c", "c"]]
)


@pytest.mark.parametrize(("tokens", "target", "pool"), [
    (1, 50, "fast"), (1000, 200, "fast"), (1001, 200, "fast"), (8001, 200, "long"),
    (1000, 201, "a"), (1001, 1000, "b"), (8000, 999, "b"), (10**6, 1000, "long"),
    (1, 1001, "c"), (1, None, "c"),
])  # fmt: skip
def test_edges_are_upper_bounds(tokens: int, target: float | None, pool: str) -> None:
    """A request without a target gets the last row, which is for those that may wait longest."""
    assert select(TABLE, tokens, target) == pool


@pytest.mark.parametrize("broken", [
    {"tokens": [10], "pools": [["a"]]},
    {"target_ms": [10], "pools": [["a"]]},
    {"tokens": [20, 10], "pools": [["a", "b", "c"]]},
    {"tokens": [10], "pools": [["a", "b"], ["c", "d"]]},
    {"pools": []},
])  # fmt: skip
def test_a_table_has_a_pool_for_every_class_and_no_more(broken: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"pools|edges"):
        Table.model_validate(broken)


def test_a_table_without_edges_is_one_pool() -> None:
    assert select(Table(pools=[["only"]]), 10**6, 0.1) == "only"
