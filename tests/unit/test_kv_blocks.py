"""One definition of block hashes, for those who ask and those who tell."""

from array import array

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from app.kv.blocks import HASH_BYTES, chain, common_blocks, media_key, media_keys, prompt_hashes, root
from app.messages.media import Media

tokens = st.lists(st.integers(0, 3), max_size=40)


def split(packed: bytes) -> list[bytes]:
    return [packed[i : i + HASH_BYTES] for i in range(0, len(packed), HASH_BYTES)]


def test_a_hash_is_xxh3_of_its_parents_and_its_tokens() -> None:
    """Written out once more, so that it can't change by accident: old entries in Redis would all be wrong."""
    first = xxhash.xxh3_64_digest(bytes(8) + array("I", [1, 2]).tobytes())
    second = xxhash.xxh3_64_digest(first + array("I", [3, 4]).tobytes())
    assert chain(root(), [1, 2, 3, 4, 5], 2) == [first, second]
    assert first.hex() == "a32c1566c369405f"


@given(tokens, tokens, st.integers(1, 5))
def test_two_prompts_share_as_many_hashes_as_leading_blocks(a: list[int], b: list[int], size: int) -> None:
    """No hash is shared after the first block that differs."""
    shared_blocks = 0
    while (shared_blocks + 1) * size <= min(len(a), len(b)) and a[: (shared_blocks + 1) * size] == b[
        : (shared_blocks + 1) * size
    ]:
        shared_blocks += 1
    mine, theirs = chain(root(), a, size), chain(root(), b, size)
    assert [x == y for x, y in zip(mine, theirs, strict=False)] == [
        i < shared_blocks for i in range(min(len(mine), len(theirs)))
    ]
    assert common_blocks(b"".join(mine), b"".join(theirs)) == shared_blocks


@pytest.mark.parametrize(("length", "blocks"), [(0, 0), (1, 0), (4, 0), (5, 1), (8, 1), (9, 2)])
def test_the_last_token_is_never_spared(length: int, blocks: int) -> None:
    """An engine computes it even when the whole prompt is cached."""
    assert len(prompt_hashes([7] * length, 4)) == blocks * HASH_BYTES


@given(tokens.filter(lambda t: len(t) > 4))
def test_a_salt_changes_every_block(prompt: list[int]) -> None:
    """One tenant's prefix is not another's, nor nobody's."""
    variants = [split(prompt_hashes(prompt, 4, salt)) for salt in (None, "a", "b")]
    assert len(variants[0]) == (len(prompt) - 1) // 4 > 0
    for hashes in zip(*variants, strict=True):
        assert len(set(hashes)) == 3


def test_the_root_tells_keys_apart() -> None:
    """Joined without a separator, ("ab",) would be ("a", "b")."""
    assert len({root(), root(["ab"]), root(["a", "b"])}) == 3


def test_a_picture_changes_the_hashes_from_its_first_block_on() -> None:
    """Blocks before it are shared by all pictures. A picture's place counts, and its length."""
    prompt = [7] * 21

    def hashed(*media: Media) -> list[bytes]:
        return split(prompt_hashes(prompt, 4, media=media))

    plain, a, b = hashed(), hashed(Media("image", "a", (), 6, 5)), hashed(Media("image", "b", (), 6, 5))
    assert a[0] == b[0] == plain[0]
    assert all(len({x, y, z}) == 3 for x, y, z in zip(a[1:], b[1:], plain[1:], strict=True))
    assert a == hashed(Media("image", "a", (), 6, 6)), "the same blocks overlap it"
    assert a[1:] != hashed(Media("image", "a", (), 5, 6))[1:]
    assert hashed(Media("image", "a", (), 4, 2), Media("image", "b", (), 6, 2)) != hashed(
        Media("image", "b", (), 4, 2), Media("image", "a", (), 6, 2)
    )


def test_media_keys_are_those_of_the_engines_events() -> None:
    """Per block: the identifier, and the offset from the block's start."""
    media = [Media("image", "a", (), 6, 5), Media("image", "b", (), 11, 1)]
    assert media_keys(media, 4) == {1: media_key([("a", 2)]), 2: media_key([("a", -2), ("b", 3)])}
