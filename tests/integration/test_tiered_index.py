"""Tests how the blocks that workers have in tiers get through Redis to the next placement."""

import asyncio
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from app.dispatch.fleet.fleet_reader import FleetReader
from app.dispatch.fleet.index_sweep import IndexSweep
from app.errors import StoreDown
from app.ids import ApiId, WorkerId
from app.keys import Keys
from app.kv.changes import Changes
from app.kv.prefix_index import KvIndex, packed
from app.kv.store_index import StoreIndex, short_name
from app.kv.tier_ledger import TierLedger
from app.kv_store import salts
from app.kv_store.block_store import FolderStore
from app.kv_store.salts import label_of, new_salt
from app.pools.schema import Pool
from app.routing.candidates import Matches, Tiered
from app.store import Command, Wire
from tests.background import beside
from tests.integration.conftest import POOL, nobody_told, register
from workers.engine import store_cleaner
from workers.engine.erased_salts import ErasedSalts
from workers.engine.store_cleaner import StoreCleaner

pytestmark = pytest.mark.both_servers

KEYS, SIZE = Keys("test"), 32
POOLS = {POOL: Pool.model_validate({"model": "m", "engine": "mock", "block_size": SIZE, "tiers": {"host_gb": 1}})}
PROMPT = [number.to_bytes(8, "big") for number in range(2500)]


async def has(wire: Wire, index: tuple[str, str], blocks: list[bytes]) -> int:
    """A cache or tier with these; its number."""
    kv_index = KvIndex(wire, KEYS, index, nobody_told)
    await kv_index.write(Changes(False, blocks, []))
    return kv_index.number


async def lives(redis: "Redis", name: str, cache: int, host: int = 0, store: int = 0) -> WorkerId:
    return await register(redis, KEYS, name, caches=[cache], hosts=[host], store=store, tier_block_bytes=1)


def ledger(blocks: list[bytes]) -> TierLedger:
    tier_ledger = TierLedger()
    tier_ledger.add(range(len(blocks)), "STORAGE", lambda number: blocks[int(number)])
    return tier_ledger


async def matched(wire: Wire, *prompts: list[bytes]) -> list[Matches]:
    view = (await FleetReader(wire, KEYS, POOLS, 10).read({POOL: [b"".join(prompt) for prompt in prompts]}))[POOL]
    return view.matches


async def storing(wire: Wire, blocks: int) -> tuple[StoreIndex, Any]:
    """A store that has the prompt's first blocks, and the ledger of who stored them."""
    store, tier_ledger = StoreIndex(wire, KEYS, POOL, "/kv", nobody_told), ledger(PROMPT[:blocks])
    await store.check(tier_ledger)
    await store.write(tier_ledger)
    return store, tier_ledger


async def test_a_prompt_is_found_in_caches_host_memory_and_the_store(redis: "Redis", wire: Wire) -> None:
    """The worker that has cached nothing loads all of it from the store."""
    store = StoreIndex(wire, KEYS, POOL, "s3://kv", nobody_told)
    await store.check(ledger([]))
    await store.write(ledger(PROMPT[:2200]))
    cache, host = await has(wire, KEYS.cached(POOL), PROMPT[:100]), await has(wire, KEYS.tiered(POOL), PROMPT[50:1500])
    await lives(redis, "old", cache, host, store.number)
    await lives(redis, "fresh", 0, 0, store.number)
    await lives(redis, "alone", 0, host=await has(wire, KEYS.tiered(POOL), PROMPT[1:]))
    whole, other = await matched(wire, PROMPT, [b"12345678"])
    assert whole.depths == [(100, frozenset([0]))]
    assert whole.tiered == {0: Tiered(host=1400, store=700), 1: Tiered(store=2200)}
    assert not other.depths
    assert not other.tiered


async def test_a_store_outlives_its_workers_and_another_redis(redis: "Redis", wire: Wire) -> None:
    """The store keeps its number; a Redis that has lost it is told by workers that have stored something."""
    first, second = (StoreIndex(wire, KEYS, POOL, "s3://kv", nobody_told) for _ in range(2))
    tier_ledger = ledger(PROMPT[:10])
    await first.check(tier_ledger)
    await first.write(tier_ledger)
    await second.check(ledger([]))
    assert second.number == first.number
    sweep = IndexSweep(wire, KEYS, ApiId("a"), FleetReader(wire, KEYS, POOLS, 10), [POOL])
    for seconds in (0.0, 61.0):
        await sweep.look(seconds)
    assert await redis.hlen(KEYS.tiered(POOL)[0]) == 10
    await redis.delete(KEYS.stores(POOL), *KEYS.tiered(POOL))
    await first.check(tier_ledger)
    assert await redis.hgetall(KEYS.tiered(POOL)[0]) == dict.fromkeys(PROMPT[:10], packed(first.number))


@pytest.mark.parametrize("sends", range(4))
async def test_a_worker_that_dies_as_it_tells_leaves_no_block_without_its_name(
    redis: "Redis", wire: Wire, sends: int
) -> None:
    """Nobody could remove it from the index, when the store has lost it."""

    class Dies(Wire):
        remaining_sends = sends

        async def execute(self, commands: Sequence[Command]) -> list[Any]:
            self.remaining_sends -= 1
            if self.remaining_sends < 0:
                raise StoreDown
            return await super().execute(commands)

    store = StoreIndex(wire, KEYS, POOL, "/kv", nobody_told)
    await store.check(ledger([]))
    await store.write(tier_ledger := ledger(PROMPT[:700]))
    tier_ledger.add(range(700, 1500), "STORAGE", lambda number: PROMPT[int(number)])
    tier_ledger.forget(range(100))
    dying = Dies(redis)
    store._wire = dying
    with suppress(StoreDown):
        await store.write(tier_ledger)
    dying.close()
    entries, _ = KEYS.tiered(POOL)
    claimed_blocks = {block for block, numbers in (await redis.hgetall(entries)).items() if numbers}
    assert claimed_blocks == {*(await redis.hgetall(KEYS.stored(POOL))).values()}


async def test_what_is_gone_from_the_store_is_removed(redis: "Redis", wire: Wire) -> None:
    store, tier_ledger = await storing(wire, 10)
    tier_ledger.remove([3], "STORAGE")
    await store.write(tier_ledger)
    assert await redis.hkeys(KEYS.tiered(POOL)[0]) == [*PROMPT[:3], *PROMPT[4:10]]
    assert [*(await store.known()).values()] == [*PROMPT[:3], *PROMPT[4:10]]


async def test_files_that_are_gone_are_found_and_what_is_too_much_is_removed(
    redis: "Redis", wire: Wire, tmp_path: Path
) -> None:
    """The oldest go; what killed writers have left goes, too."""
    store, tier_ledger = await storing(wire, 20)
    folder = FolderStore(tmp_path)
    for number in range(1, 20):  # the first file is gone
        folder.put(f"model/abc/{short_name(number).hex().rjust(64, '0')}-0", bytes(1000), number)
    folder.put("model/abc/dead.part", b"", 1)
    cleaner = StoreCleaner(folder, 15_000, store, wire, KEYS.cleaning(POOL), WorkerId("w"), 60)
    await cleaner.look()
    paths = sorted(one.path for one in folder.all())
    assert len(paths) == 13
    assert paths[0].endswith(f"{short_name(7).hex()}-0")
    assert sorted(await redis.hkeys(KEYS.tiered(POOL)[0])) == PROMPT[7:20]
    assert len(await store.known()) == 13
    await store.check(tier_ledger)
    assert len(await store.known()) == 13, "what was removed does not come back by itself"
    tier_ledger.add([2], "STORAGE", lambda _: None)  # its file is written again
    await store.write(tier_ledger)
    assert PROMPT[2] in await redis.hkeys(KEYS.tiered(POOL)[0])


async def test_a_worker_forgets_what_others_have_removed_from_the_store(redis: "Redis", wire: Wire) -> None:
    """Nothing else is forgotten: what Redis loses is written anew, and what is stored again counts again."""
    store, tier_ledger = await storing(wire, 1500)
    cleaner = StoreIndex(wire, KEYS, POOL, "/kv", nobody_told)
    await cleaner.check(ledger([]))
    lost_blocks = {name: ours for name, ours in (await cleaner.known()).items() if ours in PROMPT[:1400]}
    await cleaner.remove(lost_blocks)
    tier_ledger.add([1399], "STORAGE", lambda _: None)  # stored again, and not written yet
    await store.forget(tier_ledger)
    assert tier_ledger.blocks() == PROMPT[1399:1500]
    await store.write(tier_ledger)
    assert sorted(await redis.hkeys(KEYS.tiered(POOL)[0])) == PROMPT[1399:1500]
    tier_ledger.add([7], "STORAGE", lambda number: PROMPT[int(number)])
    await store.write(tier_ledger)
    assert PROMPT[7] in await redis.hkeys(KEYS.tiered(POOL)[0])
    for number in range(1500, 2500):
        tier_ledger.add([number], "STORAGE", lambda number: PROMPT[int(number)])
    await redis.delete(KEYS.stores(POOL), KEYS.stored(POOL), *KEYS.tiered(POOL))
    await store.forget(tier_ledger)  # Redis has lost its data, and nobody knows yet
    await store.check(tier_ledger)
    assert sorted(await redis.hkeys(KEYS.tiered(POOL)[0])) == sorted([PROMPT[7], *PROMPT[1399:]])


async def test_blocks_of_an_erased_salt_are_removed_and_others_stay(redis: "Redis", wire: Wire, tmp_path: Path) -> None:
    """Whenever a look finds them: what an engine still has in its memory may be written later. They are counted."""
    store, _ = await storing(wire, 20)
    folder, label = FolderStore(tmp_path), label_of(new_salt())

    def path(number: int) -> str:
        within = salts.folder(label) if number % 2 else ""
        return f"model/{within}abc/{short_name(number).hex().rjust(64, '0')}-0"

    for number in range(20):
        folder.put(path(number), bytes(1000), number)
    erased_salts = ErasedSalts(redis, KEYS, POOL)
    cleaner = StoreCleaner(folder, math.inf, store, wire, KEYS.cleaning(POOL), WorkerId("w"), 60, erased_salts)
    await cleaner.look()
    assert len([*folder.all()]) == 20
    await redis.hset(KEYS.erased_salts(), label, "1000")
    await cleaner.look()
    assert {one.path for one in folder.all()} == {path(number) for number in range(0, 20, 2)}
    assert sorted(await redis.hkeys(KEYS.tiered(POOL)[0])) == PROMPT[:20:2]
    folder.put(path(1), bytes(1000), 1)
    await cleaner.look()
    assert len([*folder.all()]) == 10
    assert await redis.hget(KEYS.erased_salts(), f"{label}|{POOL}") == b"11"


async def test_a_cleaner_that_rests_for_long_is_woken_by_an_erased_salt(
    redis: "Redis", wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_cleaner, "_ERASED_S", 0.01)
    store, label = StoreIndex(wire, KEYS, POOL, "/kv", nobody_told), label_of(new_salt())
    await store.check(ledger([]))
    folder, erased_salts = FolderStore(tmp_path), ErasedSalts(redis, KEYS, POOL)
    folder.put(f"model/{salts.folder(label)}abc/00-0", b"x", 1)
    cleaner = StoreCleaner(folder, math.inf, store, wire, KEYS.cleaning(POOL), WorkerId("w"), 3600, erased_salts)
    async with beside(cleaner.run()):
        await redis.hset(KEYS.erased_salts(), label, "1000")
        async with asyncio.timeout(20):
            while await redis.hget(KEYS.erased_salts(), f"{label}|{POOL}") is None:
                await asyncio.sleep(0.01)
    assert [*folder.all()] == []


async def test_one_worker_cleans_at_a_time(redis: "Redis", wire: Wire, tmp_path: Path) -> None:
    store = StoreIndex(wire, KEYS, POOL, "/kv", nobody_told)
    await store.check(ledger([]))
    cleaners = [
        StoreCleaner(FolderStore(tmp_path), math.inf, store, wire, KEYS.cleaning(POOL), WorkerId(name), 60)
        for name in ("a", "b")
    ]
    assert [await cleaner._is_mine() for cleaner in (*cleaners, *cleaners)] == [True, False, True, False]
    await redis.delete(KEYS.cleaning(POOL))
    assert await cleaners[1]._is_mine()


async def test_host_memory_of_a_worker_that_is_gone_is_swept(redis: "Redis", wire: Wire) -> None:
    host = await has(wire, KEYS.tiered(POOL), PROMPT[:5])
    worker = await lives(redis, "gone", 0, host)
    sweep = IndexSweep(wire, KEYS, ApiId("a"), FleetReader(wire, KEYS, POOLS, 10), [POOL])
    await sweep.look(0.0)
    await redis.delete(KEYS.worker(worker))
    await sweep.look(1.0)
    await sweep.look(62.0)
    assert await redis.hlen(KEYS.tiered(POOL)[0]) == 0
