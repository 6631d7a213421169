"""The one definition of a prompt's block hashes: workers publish them, and the API looks prompts up by them.

A block's hash is chained over all blocks before it, so equal hashes mean equal prefixes, and two prompts share
exactly as many leading blocks as they have leading hashes in common.
"""

from array import array
from collections.abc import Iterable, Sequence

from xxhash import xxh3_64_digest

HASH_BYTES = 8
_ROOT = bytes(HASH_BYTES)


def root(keys: Iterable[str] = ()) -> bytes:
    """The parent of the first block's hash: made of all that changes the KV besides the tokens.

    `keys`: the weights' version (`weights_keys`), then vLLM's in its order (LoRA name, cache_salt). Zero without any.
    """
    keys = tuple(keys)
    return xxh3_64_digest(b"\0".join(key.encode() for key in keys)) if keys else _ROOT


def weights_keys(version: str) -> tuple[str, ...]:
    """For `root`: none for the pool's own weights."""
    return (f"weights@{version}",) if version else ()


def chain(parent: bytes, tokens: Sequence[int], block_size: int) -> list[bytes]:
    """The hashes of the blocks that `tokens` fill, each xxh3_64(parent's hash + the block's tokens as uint32)."""
    width = 4 * block_size
    data = array("I", tokens).tobytes()
    out = []
    for start in range(0, len(data) - width + 1, width):
        parent = xxh3_64_digest(parent + data[start : start + width])
        out.append(parent)
    return out


def prompt_hashes(
    prompt: Sequence[int], block_size: int, salt: str | None = None, adapter: str | None = None, weights: str = ""
) -> bytes:
    """The packed hashes of the prompt's blocks that a cache may have: 8 bytes each, in order.

    Without the last token: engines always compute it, for its logits.
    `adapter`: with its version. `weights`: the version of the model's.
    """
    full = (len(prompt) - 1) // block_size * block_size
    keys = [*weights_keys(weights), *(key for key in (adapter, salt) if key)]
    return b"".join(chain(root(keys), prompt[:full], block_size))


def common_blocks(a: bytes, b: bytes) -> int:
    """How many leading blocks two packed prompts share."""
    size = min(len(a), len(b))
    differing = int.from_bytes(a[:size]) ^ int.from_bytes(b[:size])  # its highest bit is in the first byte that differs
    return (size - (differing.bit_length() + 7) // 8) // HASH_BYTES
