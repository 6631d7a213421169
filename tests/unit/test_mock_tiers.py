"""Blocks that a mock rank keeps behind its cache: as many as fit, by its events, and none that is not sound."""

import os
import shutil
import tempfile
from pathlib import Path

import msgspec
import pytest
import structlog.testing
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.engines.kv_publisher import BlockRemoved, BlockStored
from app.engines.mock.args import MockArgs
from app.engines.mock.blocks import BlockManager, BlockTable
from app.engines.mock.tiers import tiers_of
from app.errors import SettingsError
from app.kv.blocks import prompt_hashes
from app.kv.events import KvBatch, decode_batch
from app.kv.ledger import Ledger
from app.messages.kinds import TierUse
from app.pools.schema import Pool, Tiers
from tests.present import present

SIZE, BYTES = 4, 1024
WHOLE = 84  # bytes of a stored block that is not encrypted
encode = msgspec.msgpack.Encoder().encode


def pool(host: int, disk: Path | None = None, *, key: Path | None = None, layout: str = "") -> Pool:
    """A pool with `host` blocks in host memory."""
    return Pool(
        model="m", engine="mock", block_size=SIZE, args={"handoff": {"block_bytes": BYTES, "layout": layout}},
        tiers=Tiers(host_gb=host * BYTES / 1e9, disk=None if disk is None else str(disk), key_file=key),
    )  # fmt: skip


def cache(total: int, of: Pool) -> BlockManager:
    blocks = BlockManager(total, SIZE, record_events=True)
    blocks.tiers = tiers_of(of, MockArgs.model_validate(of.args), blocks.tell)
    return blocks


def use(blocks: BlockManager, tokens: list[int], tiers: TierUse = "all") -> tuple[int, int, int]:
    """The prompt's tokens that are cached, and the blocks that come from host memory and from the store."""
    table = BlockTable()
    cached_tokens = present(blocks.admit(table, tokens))
    load = blocks.behind(table, tokens, tiers)
    blocks.commit(table, tokens, len(tokens))
    blocks.release(table)
    store_blocks = load.stored if load else 0
    return cached_tokens, len(load.blocks) - store_blocks if load else 0, store_blocks


def held(blocks: BlockManager) -> tuple[frozenset[int], frozenset[int]]:
    """The blocks in host memory, and those in the store as far as it knows."""
    assert blocks.tiers is not None
    return blocks.tiers.host, blocks.tiers.stored


class TierMachine(RuleBasedStateMachine):
    """Sequences that share prefixes, in a cache and a host memory that are too small, over a store that loses files."""

    @initialize(total=st.integers(8, 12), host=st.integers(1, 16), store=st.booleans())
    def start(self, total: int, host: int, store: bool) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.capacity, self.stores = host, store
        self.blocks = cache(total, pool(host, self.root if store else None))
        self.ledger = Ledger(SIZE, has_store=True)
        self.chains: dict[int, tuple[int | None, bytes]] = {}  # hash → its parent, and the hash that routing has

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=30))
    def run(self, tokens: list[int]) -> None:
        table = BlockTable()
        hashes, ours = self.blocks.digests(table, tokens), prompt_hashes([*tokens, 0], SIZE)
        for i, digest in enumerate(hashes[: len(tokens) // SIZE]):
            self.chains[digest] = hashes[i - 1] if i else None, ours[8 * i : 8 * i + 8]
        expected_blocks = [0, 0, 0]  # blocks of the longest chain: from the device, from host memory, from the store
        places = self.blocks.cached, held(self.blocks)[0], self.sound()
        for digest in hashes[: (len(tokens) - 1) // SIZE]:
            place = next((i for i, place in enumerate(places) if digest in place), None)
            if place is None:
                break
            expected_blocks[place] += 1
        cached_tokens, *loaded_blocks = use(self.blocks, tokens)
        assert [cached_tokens // SIZE, *loaded_blocks] == expected_blocks

    @precondition(lambda self: self.stores)
    @rule(data=st.data(), damage=st.booleans())
    def lose(self, data: st.DataObject, damage: bool) -> None:
        files = [path for path in self.root.rglob("*") if path.is_file()]
        if files:
            file = data.draw(st.sampled_from(sorted(files)))
            file.write_bytes(file.read_bytes()[:-1]) if damage else file.unlink()

    @rule()
    def clear(self) -> None:
        assert self.blocks.clear()

    def sound(self) -> set[int]:
        return {int(path.name, 16) for path in self.root.rglob("*") if path.is_file() and path.stat().st_size == WHOLE}

    @invariant()
    def host_memory_is_bounded_and_has_no_block_without_its_parent(self) -> None:
        host, _ = held(self.blocks)
        assert len(host) <= self.capacity
        assert {self.chains[digest][0] for digest in host} <= host | {None}

    @invariant()
    def events_lead_a_ledger_to_what_host_memory_and_store_have(self) -> None:
        self.ledger.apply(decode_batch(encode(KvBatch(0.0, self.blocks.events))).events)
        self.blocks.events = []
        for tier, blocks in zip((self.ledger.host, self.ledger.store), held(self.blocks), strict=True):
            assert sorted(tier.blocks()) == sorted(self.chains[digest][1] for digest in blocks)


TestTierMachine = TierMachine.TestCase
TestTierMachine.settings = settings(max_examples=60, stateful_step_count=25)


def test_what_the_device_has_evicted_is_loaded_from_host_memory() -> None:
    blocks = cache(3, pool(6))
    assert use(blocks, [1] * 12) == (0, 0, 0)
    use(blocks, [2] * 12)
    assert use(blocks, [1] * 12) == (0, 2, 0)
    assert use(blocks, [1] * 12) == (8, 0, 0)


def test_a_new_process_finds_what_was_stored(tmp_path: Path) -> None:
    """Another process of the same model and layout finds it too."""
    use(cache(8, pool(1, tmp_path)), [1] * 12)
    assert use(cache(8, pool(6, tmp_path)), [1] * 13) == (0, 0, 3)
    assert use(cache(8, pool(6, tmp_path, layout="other")), [1] * 13) == (0, 0, 0)


def test_a_block_is_in_one_tier_or_the_other(tmp_path: Path) -> None:
    """Host memory has room for the head only."""
    blocks = cache(4, pool(1, tmp_path))
    use(blocks, [1] * 13)
    evicts = BlockTable()
    blocks.admit(evicts, [2] * 16)
    blocks.release(evicts)
    assert use(blocks, [1] * 13) == (0, 1, 2)


def test_a_request_loads_only_from_the_tiers_that_it_may_use(tmp_path: Path) -> None:
    """One whose tiers are slower than computing."""
    use(cache(8, pool(1, tmp_path)), [1] * 13)
    assert use(cache(8, pool(6, tmp_path)), [1] * 13, "host") == (0, 0, 0)
    blocks = cache(8, pool(6))
    use(blocks, [1] * 13)
    evicts = BlockTable()
    blocks.admit(evicts, [2] * 32)
    blocks.release(evicts)
    assert use(blocks, [1] * 13, "none") == (0, 0, 0)


def test_what_a_worker_computes_though_it_is_stored_counts_as_used_and_beginnings_longer(tmp_path: Path) -> None:
    blocks = cache(8, pool(6, tmp_path))
    use(blocks, [1] * 13)
    files = [next(tmp_path.rglob(f"{digest:016x}")) for digest in blocks.digests(BlockTable(), [1] * 12)]
    for file in files:
        os.utime(file, (1, 1))
    use(cache(8, pool(6, tmp_path)), [1] * 13, "none")
    times = [file.stat().st_mtime for file in files]
    assert times[0] > times[1] > times[2] > 1


def test_what_a_process_knows_of_its_store_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that it has forgotten is found there, and told again."""
    monkeypatch.setattr("app.engines.mock.tiers._MOST_STORED", 5)
    blocks = cache(4, pool(1, tmp_path))
    for number in range(10):
        use(blocks, [number] * 12)
    assert len(held(blocks)[1]) == 5
    assert use(blocks, [1] * 13) == (0, 0, 3)
    assert len(held(blocks)[1]) == 5


@pytest.mark.parametrize("damage", [b"", b"XKV1 and nothing that fits"])
def test_a_damaged_block_is_removed_and_computed(tmp_path: Path, damage: bytes) -> None:
    """Routing learns that it is gone, and that it is there again."""
    blocks = cache(8, pool(6, tmp_path))
    table = BlockTable()
    use(blocks, [1] * 13)
    second = blocks.digests(table, [1] * 12)[1]
    (file,) = tmp_path.rglob(f"{second:016x}")
    file.write_bytes(damage)
    blocks.clear()
    blocks.events = []
    assert use(blocks, [1] * 13) == (0, 0, 1)
    storage_events = [e for e in blocks.events if isinstance(e, BlockStored | BlockRemoved) and e.medium == "STORAGE"]
    assert [(type(e), [*e.block_hashes]) for e in storage_events] == [(BlockRemoved, [second]), (BlockStored, [second])]
    assert file.read_bytes() != damage


def test_without_the_key_there_is_nothing(tmp_path: Path) -> None:
    (key := tmp_path / "key").write_bytes(bytes(range(32)))
    use(cache(8, pool(6, tmp_path / "kv", key=key)), [1] * 13)
    assert use(cache(8, pool(6, tmp_path / "kv", key=key)), [1] * 13) == (0, 0, 3)
    assert use(cache(8, pool(6, tmp_path / "kv")), [1] * 13) == (0, 0, 0)


def test_a_store_that_fails_is_a_miss_and_logged_once(tmp_path: Path) -> None:
    """Its folder has become a file."""
    blocks = cache(8, pool(6, tmp_path / "kv"))
    (tmp_path / "kv").rmdir()
    (tmp_path / "kv").touch()
    with structlog.testing.capture_logs() as logs:
        use(blocks, [1] * 13)
        blocks.clear()
        assert use(blocks, [1] * 13) == (0, 0, 0)
    assert held(blocks)[1] == frozenset()
    assert [line["action"] for line in logs] == ["kv_store_failed"]


def test_what_cannot_work_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"tiers\.host_gb"):
        cache(8, Pool(model="m", engine="mock", tiers=Tiers(host_gb=0.001)))
    with pytest.raises(SettingsError, match=r"tiers\.key_file"):
        cache(8, pool(6, tmp_path, key=tmp_path / "none"))
