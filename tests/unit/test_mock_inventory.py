"""Blocks that a mock engine's inventory keeps."""

from app.engines.mock.inventory import Content, only


def test_it_keeps_blocks_and_those_before_them_and_no_others() -> None:
    blocks = {1: Content(None, [1]), 2: Content(1, [2]), 3: Content(2, [3]), 4: Content(1, [4]), 5: Content(None, [5])}
    assert only(blocks, [3]).keys() == {1, 2, 3}
    assert only(blocks, [2, 4]).keys() == {1, 2, 4}
    assert only(blocks, []) == {}
