"""Encoded pictures between two memories, over real NIXL."""

from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from app.engines.base import Embedding
from app.errors import HandoffFailed
from app.ids import WorkerId
from app.runner.embedding_memory import EmbeddingMemory

pytestmark = pytest.mark.integration

PAGE = 2**16
Pair = tuple[EmbeddingMemory, EmbeddingMemory]


def picture(mark: int, pages: int = 1) -> Embedding:
    """Rows of zeros and one mark, of so many pages."""
    data = bytearray(pages * PAGE)
    data[-1] = mark
    return Embedding(pages * PAGE // 64, 16, "float32", bytes(data))


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    """Two memories of three pages each: an encode worker's, and that of a worker that answers."""
    memories = EmbeddingMemory(WorkerId("eyes"), 3 * PAGE), EmbeddingMemory(WorkerId("answers"), 3 * PAGE)
    yield memories
    for memory in memories:
        await memory.close()


async def test_what_is_fetched_is_what_was_kept(pair: Pair) -> None:
    eyes, answers = pair
    entry = await eyes.keep("a", picture(1, pages=3), "v1")
    assert entry.forgotten == []
    assert eyes.find("a") == entry.handle
    assert await answers.fetch(entry.handle) == picture(1, pages=3)


async def test_the_least_recently_used_goes_first(pair: Pair) -> None:
    eyes, _ = pair
    for name in ("a", "b", "c"):
        assert (await eyes.keep(name, picture(1), "")).forgotten == []
    assert eyes.find("a") is not None, "it is used"
    assert (await eyes.keep("d", picture(2), "")).forgotten == ["b"]
    assert [eyes.find(name) is not None for name in "abcd"] == [True, False, True, True]
    assert (await eyes.keep("d", picture(3, pages=2), "")).forgotten == ["a"], "its own place is free again"


async def test_one_larger_than_the_memory_is_not_kept(pair: Pair) -> None:
    eyes, _ = pair
    await eyes.keep("a", picture(1), "")
    with pytest.raises(HandoffFailed, match="larger than embedding_bytes"):
        await eyes.keep("b", picture(2, pages=4), "")
    assert eyes.find("a") is not None


async def test_another_picture_in_its_place_is_noticed(pair: Pair) -> None:
    eyes, answers = pair
    old = (await eyes.keep("a", picture(1, pages=3), "")).handle
    await eyes.keep("b", picture(2, pages=3), "")
    with pytest.raises(HandoffFailed, match="another picture there by now"):
        await answers.fetch(old)


@pytest.mark.parametrize(
    "wrong", [{"page_bytes": 2 * PAGE}, {"rows": 1 + 2 * PAGE // 64}, {"rows": 0}, {"dtype": "int8"}]
)
async def test_one_that_is_kept_in_another_way_is_not_fetched(pair: Pair, wrong: dict[str, object]) -> None:
    """Its sizes would read memory that isn't its own."""
    eyes, answers = pair
    handle = (await eyes.keep("a", picture(1), "")).handle
    with pytest.raises(HandoffFailed, match="kept in another way"):
        await answers.fetch(replace(handle, **wrong))
    assert await answers.fetch(handle) == picture(1), "the memory is as free as before"


async def test_what_finds_no_room_to_be_fetched_into_is_not_fetched(pair: Pair) -> None:
    eyes, answers = pair
    handle = (await eyes.keep("a", picture(1, pages=2), "")).handle
    await answers.keep("own", picture(2, pages=2), "")
    with pytest.raises(HandoffFailed, match="no memory"):
        await answers.fetch(handle)
