"""Chooses what a store has to lose so that it stays within its bound. Pure."""

from collections.abc import Iterable, Sequence

from app.kv_store.block_store import StoredBlock

_PART = ".part"  # the end of a file that is being written
_PART_S = 3600.0  # after which its writer is dead
_SPARE = 0.9  # of the bound, that is left: so that not every block that comes makes work


def superfluous(stock: Sequence[StoredBlock], most: float, now: float) -> list[StoredBlock]:
    """Files that killed writers left; and if there are more than `most` bytes, those that were used longest ago."""
    dead = [one for one in stock if one.path.endswith(_PART) and now - one.used > _PART_S]
    blocks = [one for one in stock if not one.path.endswith(_PART)]
    size = sum(one.size for one in blocks)
    if size <= most:
        return dead
    return [*dead, *_oldest(blocks, size - _SPARE * most)]


def _oldest(blocks: Iterable[StoredBlock], least: float) -> Iterable[StoredBlock]:
    """Blocks that were used longest ago, of `least` bytes together."""
    for one in sorted(blocks, key=lambda one: one.used):
        if least <= 0:
            return
        least -= one.size
        yield one
