"""Whether the prefix index says what is there: against the engines' own bookkeeping, and the files of their store."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from app.engines.mock.inventory import Content, RankBlocks, ask
from app.ids import PoolId
from app.keys import Keys
from app.kv.blocks import chain, media_key, root
from app.kv.prefix_index import packed
from app.messages.lease import Lease
from tests.chaos.fleet import Fleet
from tests.stack import leases

# A cache is counted each 5 s, and a store looked at each `disk_look_s`, by whoever has said so for three times as long.
_PATIENCE_S = 60.0


@dataclass
class Compared:
    claims: int = 0  # of blocks, by the index
    wrong: list[str] = field(default_factory=list)


def compared(fleet: Fleet, pool: str, patience_s: float = _PATIENCE_S) -> Compared:
    """The comparison for a quiet fleet, once nothing is wrong, or as it is when patience ends."""
    end = time.monotonic() + patience_s
    while (comparison := _look(fleet, PoolId(pool))).wrong and time.monotonic() < end:
        time.sleep(0.2)
    return comparison


def _look(fleet: Fleet, pool: PoolId) -> Compared:
    keys, index = Keys(fleet.stack.deployment), {}
    for name, (entries, counts) in {"cached": keys.cached(pool), "tiered": keys.tiered(pool)}.items():
        index[name] = _Index(fleet.redis.hgetall(entries), fleet.redis.hgetall(counts))  # type: ignore[arg-type]
    comparison, names = Compared(), dict[int, bytes]()
    living = leases(fleet.stack, pool)
    for lease in living:
        _compare_caches(lease, index, names, comparison)
    store_entries: dict[bytes, bytes] = fleet.redis.hgetall(keys.stored(pool))  # type: ignore[assignment]
    if (store := fleet.store) is not None:
        numbers = {lease.store for lease in living} | {int(n) for n in fleet.redis.hvals(keys.stores(pool))}  # type: ignore[union-attr]
        if len(numbers) == 1:
            _compare_store(numbers.pop(), index["tiered"], store_entries, store, names, comparison)
        else:
            comparison.wrong.append(f"the store has the numbers {numbers}")
    return comparison


class _Index:
    def __init__(self, entries: Mapping[bytes, bytes], counts: Mapping[bytes, bytes]) -> None:
        self._counts, self._blocks = counts, dict[bytes, set[bytes]]()
        for block, numbers in entries.items():
            for at in range(0, len(numbers), 4):
                self._blocks.setdefault(numbers[at : at + 4], set()).add(block)

    def of(self, number: int, what: str, found: Compared) -> set[bytes]:
        blocks = self._blocks.get(packed(number), set())
        found.claims += len(blocks)
        if (count := int(self._counts.get(packed(number), 0))) != len(blocks):
            found.wrong.append(f"{what}: {len(blocks)} entries, {count} counted")
        return blocks


def _compare_caches(lease: Lease, index: Mapping[str, _Index], names: dict[int, bytes], found: Compared) -> None:
    """Adds our hashes of all its engine's blocks to `names`."""
    try:
        ranks = ask(lease.worker.pid)
    except OSError as exc:
        found.wrong.append(f"{lease.worker.id} doesn't tell what it holds: {exc}")
        return
    for rank, rank_blocks in enumerate(ranks):
        names |= (own := _names(rank_blocks, lease.worker.block_size))
        hosts = [*lease.hosts, *[0] * len(ranks)]
        for what, which, number, there in (
            ("cache", "cached", lease.caches[rank], rank_blocks.device),
            ("host memory", "tiered", hosts[rank], rank_blocks.host),
        ):
            where = f"{what} of {lease.worker.id}, rank {rank}"
            claims, really = index[which].of(number, where, found), {own[block] for block in there}
            found.wrong += _differences(where, claims - really, really - claims)


def _differences(where: str, claimed: Iterable[bytes], unclaimed: Iterable[bytes]) -> Iterator[str]:
    yield from (f"{where}: {block.hex()} is claimed and not there" for block in claimed)
    yield from (f"{where}: {block.hex()} is there and not claimed" for block in unclaimed)


def _names(held: RankBlocks, size: int) -> dict[int, bytes]:
    """The engine's hashes → ours, of all that it holds."""
    names: dict[int, bytes] = {}
    for block in (*held.device, *held.host):
        line, at = list[int](), block
        while at not in names:
            line.append(at)
            if (parent := held.contents[at].parent) is None:
                break
            at = parent
        for one in reversed(line):
            names[one] = _name(held.contents[one], names, size)
    return names


def _name(content: Content, names: Mapping[int, bytes], size: int) -> bytes:
    texts, media = [], []
    for key in content.keys:
        texts.append(key) if isinstance(key, str) else media.append(key)
    parent = root(texts) if content.parent is None else names[content.parent]
    return chain(parent, content.tokens, size, {0: media_key(media)} if media else None)[0]


def _compare_store(
    number: int, index: _Index, stored: Mapping[bytes, bytes], store: Path, names: Mapping[int, bytes], found: Compared
) -> None:
    """A file may be unclaimed, by a worker that was killed before it said so, say: then nothing leads to it."""
    own = packed(number)
    store_hashes = {int.from_bytes(name[4:]): ours for name, ours in stored.items() if name[:4] == own}
    claims = index.of(number, "store", found)
    files = {int(path.name, 16) for path in store.rglob("*") if path.is_file() and path.suffix != ".part"}
    there = {ours for block, ours in store_hashes.items() if block in files}
    found.wrong += _differences("store", (claims | {*store_hashes.values()}) - there, there - claims)
    wrong = [block for block in store_hashes.keys() & names.keys() if names[block] != store_hashes[block]]
    found.wrong += [f"store: {block:x} is claimed to be another block" for block in wrong]
