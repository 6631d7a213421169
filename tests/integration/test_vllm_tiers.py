"""Real vLLM with tiers: what its own cache has evicted is loaded from host memory or a store, and never wrong."""

import asyncio
import gc
import os
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
import s3fs

from app.engines.base import EngineInfo, GenerateRequest
from app.errors import EngineFailed
from app.ids import RunId
from app.kv_store.block_store import FolderStore
from app.kv_store.salts import folder, label_of, new_salt
from app.kv_store.seal import BlockSeal, Damaged
from app.messages.job import Sampling
from app.messages.kinds import TierUse
from app.pools.schema import Pool
from app.runner.engine_factory import create_engine
from tests.contract.conftest import model_dir
from tests.forkserver import forks_of
from tests.s3 import access, s3_server
from tests.shallow import shallow_model

pytestmark = [
    pytest.mark.real_engine,
    pytest.mark.timeout(300),
    # vLLM and what it imports use what torch and Python have deprecated, and leave ZeroMQ contexts to the collector.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
]

BLOCK, TOKENS = 32, 480
BLOCKS = TOKENS // BLOCK
ROOM = 20  # blocks of the engine's own cache: one prompt, and no second one
BLOCK_BYTES = 4 * 2 * 3 * 64 * 4 * BLOCK  # layers, keys and values, heads, head size, float32
_ids = count()


class Answer(NamedTuple):
    tokens: list[int]
    cached: int  # of its prompt


class Asker:
    def __init__(self, pool: Pool, engine: Any, info: EngineInfo) -> None:
        self.pool, self.engine, self.info = pool, engine, info

    async def ask(self, seed: int, salt: str | None = None, tiers: TierUse = "all", rank: int = 0) -> Answer:
        """About the prompt of this seed."""
        sampling = Sampling(max_tokens=4, temperature=0.0, ignore_eos=True)
        request = GenerateRequest(
            RunId(f"t{next(_ids)}"), prompt_of(seed), sampling, rank=rank, cache_salt=salt, tiers=tiers
        )
        tokens, cached_tokens = list[int](), 0
        async for step in self.engine.generate(request):
            tokens += step.tokens
            cached_tokens = max(cached_tokens, step.cached_tokens)
        return Answer(tokens, cached_tokens)

    def kill(self) -> None:
        """The engine's own processes."""
        for process in self.engine._processes:
            process.kill()
            process.join()

    async def evict(self, rank: int = 0) -> None:
        """Evicts the blocks of earlier prompts from the engine's own cache, not from its tiers."""
        for _ in range(2):
            await self.ask(next(_OTHERS), rank=rank)


_OTHERS = count(10_000)


def prompt_of(seed: int) -> list[int]:
    rng = Random(seed)
    return [rng.randrange(1000, 40_000) for _ in range(TOKENS)]


@asynccontextmanager
async def loaded(host_mb: float = 16, **tiers: Any) -> AsyncIterator[Asker]:
    """`host_mb`: 80 blocks unless told otherwise."""
    async with started(tiers={"host_gb": host_mb / 1000, **tiers}) as asker:
        yield asker


@asynccontextmanager
async def started(args: dict[str, Any] | None = None, **settings: Any) -> AsyncIterator[Asker]:
    pool = Pool.model_validate({
        "model": "test", "engine": "vllm", "path": shallow_model(model_dir()), "max_running": 2, "max_model_len": 512,
        "args": {"kv_cache_memory_bytes": ROOM * BLOCK_BYTES} | (args or {}), **settings,
    })  # fmt: skip
    with forks_of("vllm"):
        engine = create_engine(pool)
        info = await engine.start()
        try:
            yield Asker(pool, engine, info)
        finally:
            await engine.close()
    del engine
    gc.collect()  # what vLLM leaves to the collector is collected while this file's warning filters hold


def blocks_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


async def stored(folder: Path, least: int) -> None:
    """Waits until so many blocks are there."""
    deadline = time.monotonic() + 30
    while len([path for path in blocks_of(folder) if path.suffix != ".part"]) < least:
        assert time.monotonic() < deadline, f"{len(blocks_of(folder))} blocks"
        await asyncio.sleep(0.05)


async def used_since(folder: Path, least: int) -> None:
    """Waits until so many blocks have another time than the oldest."""
    deadline = time.monotonic() + 30
    while len([path for path in blocks_of(folder) if path.stat().st_mtime > 1]) < least:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def test_an_evicted_prefix_comes_from_host_memory_and_after_a_restart_from_the_folder(tmp_path: Path) -> None:
    async with loaded(disk=str(tmp_path / "kv")) as first:
        first_answer = await first.ask(1)
        await first.evict()
        assert await first.ask(1) == Answer(first_answer.tokens, TOKENS)
        await stored(tmp_path / "kv", 3 * BLOCKS)
    assert first_answer.cached == 0
    async with loaded(disk=str(tmp_path / "kv")) as second:
        assert await second.ask(1) == Answer(first_answer.tokens, TOKENS)
        assert (await second.ask(1, salt="another tenant")).cached == 0


async def test_blocks_of_a_tenants_salt_have_a_folder_of_their_own_and_are_loaded_from_it(tmp_path: Path) -> None:
    """Another process loads them too; they are gone without the folder, and others' blocks are not."""
    salt, kv = f"{new_salt()}:client's own", tmp_path / "kv"
    async with loaded(disk=str(kv)) as first:
        first_answer = await first.ask(1, salt=salt)
        await first.ask(2)
        await first.evict()
        await stored(kv, 4 * BLOCKS)
    own = [path for path in blocks_of(kv) if f"/{folder(label_of(salt))}" in str(path)]
    assert len(own) == BLOCKS
    async with loaded(disk=str(kv)) as second:
        assert await second.ask(1, salt=salt) == Answer(first_answer.tokens, TOKENS)
    shutil.rmtree(own[0].parents[1])
    async with loaded(disk=str(kv)) as third:
        assert (await third.ask(1, salt=salt)).cached == 0
        assert (await third.ask(2)).cached == TOKENS


@pytest.mark.tiers
async def test_a_request_loads_only_from_the_tiers_that_it_may_use(tmp_path: Path) -> None:
    """One whose tiers are slower than computing."""
    async with loaded(disk=str(tmp_path / "kv")) as first:
        first_answer = await first.ask(1)
        await first.evict()
        assert await first.ask(1, tiers="none") == first_answer
        await first.evict()
        assert await first.ask(1, tiers="host") == Answer(first_answer.tokens, TOKENS)
        await stored(tmp_path / "kv", BLOCKS)
    async with loaded(disk=str(tmp_path / "kv")) as second:
        assert await second.ask(1, tiers="host") == first_answer


@pytest.mark.tiers
async def test_a_flipped_bit_costs_recomputation_and_no_wrong_answer(tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    async with loaded(disk=str(folder)) as first:
        first_answer = await first.ask(1)
        await stored(folder, BLOCKS)
    for path in blocks_of(folder):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    async with loaded(disk=str(folder)) as second:
        assert await second.ask(1) == first_answer
        await stored(folder, BLOCKS)  # what was damaged is removed, and written anew
    async with loaded(disk=str(folder)) as third:
        assert await third.ask(1) == Answer(first_answer.tokens, TOKENS)


@pytest.mark.tiers
async def test_a_store_that_hangs_costs_a_moment_once(tmp_path: Path) -> None:
    """Reading a named pipe waits for a writer, who never comes."""
    folder = tmp_path / "kv"
    async with loaded(disk=str(folder)) as first:
        first_answers = [await first.ask(1), await first.ask(2)]
        await stored(folder, 2 * BLOCKS)
    for path in blocks_of(folder):
        path.unlink()
        os.mkfifo(path)
    async with loaded(disk=str(folder)) as second:
        assert await second.ask(1) == first_answers[0]
        began = time.monotonic()
        assert await second.ask(2) == first_answers[1]
        assert time.monotonic() - began < 2.0  # its patience with the store


@pytest.mark.tiers
async def test_a_full_disk_costs_recomputation_only(tmp_path: Path) -> None:
    with small_disk(tmp_path / "kv", blocks=10):
        async with loaded(disk=str(tmp_path / "kv")) as first:
            first_answers = [await first.ask(seed) for seed in range(4)]
        async with loaded(disk=str(tmp_path / "kv")) as second:
            assert [(await second.ask(seed)).tokens for seed in range(4)] == [answer.tokens for answer in first_answers]
        assert not [path for path in blocks_of(tmp_path / "kv") if path.suffix == ".part"]


@pytest.mark.tiers
async def test_an_engine_killed_while_it_writes_leaves_whole_blocks_and_its_memory_is_freed(tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    with pytest.raises(EngineFailed):
        async with loaded(disk=str(folder)) as first:
            await first.ask(1)
            await stored(folder, 1)
            first.kill()
            await first.ask(2)
    seal = BlockSeal()
    for path in blocks_of(folder):
        if path.suffix != ".part":
            assert is_whole(seal, path)
    assert regions()
    async with loaded(disk=str(folder)) as second:
        assert (await second.ask(1)).cached > 0
    assert not regions()


@pytest.mark.tiers
async def test_an_encrypted_store_is_unreadable_without_its_key(tmp_path: Path) -> None:
    folder, keys = tmp_path / "kv", [tmp_path / "key", tmp_path / "other"]
    for key in keys:
        key.write_bytes(os.urandom(32))
    async with loaded(disk=str(folder), key_file=keys[0]) as first:
        first_answer = await first.ask(1)
        await stored(folder, BLOCKS)
    assert all(path.read_bytes().startswith(b"XKE1") and path.stat().st_mode & 0o077 == 0 for path in blocks_of(folder))
    async with loaded(disk=str(folder), key_file=keys[0]) as same:
        assert await same.ask(1) == Answer(first_answer.tokens, TOKENS)
    async with loaded(disk=str(folder), key_file=keys[1]) as other:
        assert await other.ask(1) == first_answer


@pytest.mark.tiers
async def test_a_bucket_is_a_store_too() -> None:
    with s3_server() as server:
        async with loaded(disk="s3://bucket/kv") as first:
            first_answers = [await first.ask(1), await first.ask(2)]
            await first.evict()
            assert await first.ask(1) == Answer(first_answers[0].tokens, TOKENS)
        async with loaded(disk="s3://bucket/kv") as second:
            assert await second.ask(1) == Answer(first_answers[0].tokens, TOKENS)
            server.stop()  # while it runs
            assert await second.ask(2) == first_answers[1]
        async with loaded(disk="s3://bucket/kv") as third:  # and a bucket that is gone costs recomputation
            assert await third.ask(1) == first_answers[0]


@pytest.mark.tiers
async def test_a_bucket_that_hangs_costs_a_moment_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with loaded() as plain:
        first_answers = [await plain.ask(1), await plain.ask(2)]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for name, value in access(f"http://127.0.0.1:{silent.getsockname()[1]}").items():
            monkeypatch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        async with loaded(disk="s3://bucket/kv") as engine:
            assert await engine.ask(1) == first_answers[0]
            began = time.monotonic()
            assert await engine.ask(2) == first_answers[1]
            assert time.monotonic() - began < 2.0  # its patience with the store


@pytest.mark.tiers
async def test_what_is_loaded_counts_as_used_and_beginnings_longer(tmp_path: Path) -> None:
    """A store that has to lose something loses what nobody uses, and ends of prompts before their beginnings."""
    folder = tmp_path / "kv"
    async with loaded(disk=str(folder)) as first:
        await first.ask(1)
        await stored(folder, BLOCKS)
        for path in blocks_of(folder):
            os.utime(path, (1, 1))
    async with loaded(disk=str(folder)) as second:
        assert (await second.ask(1)).cached == TOKENS  # all blocks, and with the answer none more
        await used_since(folder, BLOCKS)
    times = sorted({path.stat().st_mtime for path in blocks_of(folder)})
    assert len(times) == BLOCKS
    assert times[-1] - times[0] == pytest.approx((BLOCKS - 1) * BLOCK * 1e-4, abs=1e-3)


@pytest.mark.tiers
async def test_two_engines_share_a_store(tmp_path: Path) -> None:
    async with loaded(disk=str(tmp_path / "kv")) as first, loaded(disk=str(tmp_path / "kv")) as second:
        first_answer = await first.ask(1)
        await stored(tmp_path / "kv", BLOCKS)
        assert await second.ask(1) == Answer(first_answer.tokens, TOKENS)


def regions() -> list[Path]:
    """Host memory of engines, also of dead ones."""
    return list(Path("/dev/shm").glob("vllm_offload_*.mmap"))


def is_whole(seal: BlockSeal, path: Path) -> bool:
    """Its name is that of the block's hash and group, which its sum depends on."""
    name, group = path.name.rsplit("-", 1)
    try:
        seal.open(bytes.fromhex(name) + int(group).to_bytes(4, "big"), path.read_bytes())
    except Damaged:
        return False
    return True


@contextmanager
def small_disk(folder: Path, blocks: int) -> Iterator[None]:
    folder.mkdir()
    size = blocks * BLOCK_BYTES
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_block_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "kv")
    store.put("a/b", b"one", 0)
    assert store.has("a/b")
    assert store.get("a/b") == b"one"
    store.delete("a/b")
    assert store.get("a/b") is None
    assert not blocks_of(tmp_path / "kv")
