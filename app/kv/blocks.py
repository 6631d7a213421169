"""The one definition of a prompt's block hashes: workers publish them, and the API looks prompts up by them.

A block's hash is chained over all blocks before it, so equal hashes mean equal prefixes, and two prompts share
exactly as many leading blocks as they have leading hashes in common.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence

from xxhash import xxh3_64_digest

from app.messages.lease import Grid
from app.messages.media import Media

HASH_BYTES = 8
_ROOT = bytes(HASH_BYTES)


def root(keys: Iterable[str] = ()) -> bytes:
    """The parent of the first block's hash: made of all that changes the KV besides the tokens.

    `keys`: the weights' version (`weights_keys`), then vLLM's in its order (LoRA name, cache_salt). Zero without any.
    """
    keys = tuple(keys)
    return xxh3_64_digest(b"\0".join(key.encode() for key in keys)) if keys else _ROOT


def weights_keys(version: str) -> tuple[str, ...]:
    """Keys of the weights for `root`: none for the pool's own weights."""
    return (f"weights@{version}",) if version else ()


def chain(
    parent: bytes, tokens: Sequence[int], block_size: int, extras: Mapping[int, bytes] | None = None
) -> list[bytes]:
    """The hashes of the blocks that `tokens` fill.

    Each is xxh3_64(parent's hash + the block's tokens as uint32 + its extra key). `extras`: the key of each block that
    overlaps a picture or a sound, by the block's number among these, from 0.
    """
    width = 4 * block_size
    data = array("I", tokens).tobytes()
    if extras:
        return _chain_with(parent, data, width, extras)
    out = []
    for start in range(0, len(data) - width + 1, width):
        parent = xxh3_64_digest(parent + data[start : start + width])
        out.append(parent)
    return out


def _chain_with(parent: bytes, data: bytes, width: int, extras: Mapping[int, bytes]) -> list[bytes]:
    out = []
    for number, start in enumerate(range(0, len(data) - width + 1, width)):
        parent = xxh3_64_digest(parent + data[start : start + width] + extras.get(number, b""))
        out.append(parent)
    return out


def media_key(pictures: Iterable[tuple[str, int]]) -> bytes:
    """The extra key of a block that overlaps these: identifiers, and their offsets from the block's start, in order.

    As in vLLM's KV events. The offset is negative where one began in an earlier block.
    """
    return b"".join(f"{identifier}@{offset};".encode() for identifier, offset in pictures)


def media_keys(media: Sequence[Media], block_size: int) -> dict[int, bytes]:
    """The extra keys of a prompt's blocks, for `chain`. `media`: by offset."""
    keys_by_block: dict[int, list[tuple[str, int]]] = {}
    for one in media:
        for block in range(one.offset // block_size, -(-(one.offset + one.length) // block_size)):
            keys_by_block.setdefault(block, []).append((one.sha256, one.offset - block * block_size))
    return {block: media_key(keys) for block, keys in keys_by_block.items()}


def point_hashes(
    prompt: Sequence[int],
    grid: Grid,
    salt: str | None = None,
    adapter: str | None = None,
    weights: str = "",
    media: Sequence[Media] = (),
) -> bytes:
    """Hashes of `prompt_hashes`: those of the blocks at whose end a prompt may resume."""
    hashes = prompt_hashes(prompt, grid.block_size, salt, adapter, weights, media=media)
    every = grid.step // grid.block_size * HASH_BYTES
    if every == HASH_BYTES:
        return hashes
    return b"".join(hashes[end - HASH_BYTES : end] for end in range(every, len(hashes) + 1, every))


def prompt_hashes(
    prompt: Sequence[int],
    block_size: int,
    salt: str | None = None,
    adapter: str | None = None,
    weights: str = "",
    media: Sequence[Media] = (),
) -> bytes:
    """The packed hashes of the prompt's blocks that a cache may have: 8 bytes each, in order.

    Without the last token: engines always compute it, for its logits.
    `adapter`: with its version. `weights`: the version of the model's. `media`: in the prompt, by offset.
    """
    full = (len(prompt) - 1) // block_size * block_size
    parent = _ROOT
    if weights or adapter or salt:
        parent = root([*weights_keys(weights), *(key for key in (adapter, salt) if key)])
    return b"".join(chain(parent, prompt[:full], block_size, media_keys(media, block_size) if media else None))


def common_points(mine: bytes, other: bytes, every: int) -> int:
    """Number of leading points of `mine` that end where it may resume once the `other` prompt has been computed.

    `every`: points from one to the next of those that a prompt leaves; 0: it leaves its last one.
    """
    block_count = common_blocks(mine, other)
    if block_count * HASH_BYTES == len(other):
        return block_count
    return block_count // every * every if every else 0


def common_blocks(a: bytes, b: bytes) -> int:
    """Number of leading blocks that two packed prompts share."""
    size = min(len(a), len(b))
    differing = int.from_bytes(a[:size]) ^ int.from_bytes(b[:size])  # its highest bit is in the first byte that differs
    return (size - (differing.bit_length() + 7) // 8) // HASH_BYTES
