"""Effects of a probe on an engine: there are none. `test_engine_contract.py` has loaded the engines and runs this."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from app.ids import WorkerId
from app.kv.blocks import HASH_BYTES, prompt_hashes
from app.runner.probed_work import ProbedWork
from tests.contract.conftest import make_pool
from tests.contract.subject import Subject
from workers.engine.probe import Probe

PROBES = 3


async def test_a_probe_leaves_no_blocks_no_events_and_no_work(subject: Subject) -> None:
    """The signs that tell of a later prompt would have told of the probes before."""
    size, engine, probe_work = subject.info.block_size, subject.engine, ProbedWork()
    worker: Any = SimpleNamespace(
        engine=engine, worker=WorkerId("w"), gates=[None], computes=True, probed=probe_work, info=subject.info
    )
    probe = Probe(worker, make_pool(subject.name))

    async def told(word: str) -> tuple[set[bytes], set[bytes]]:
        """All blocks that it has told of, when it has told of a new prompt's; and these."""
        prompt = subject.encode(f"{word} " * 3 * size)[: 2 * size + 1]
        hashes = prompt_hashes(prompt, size)
        own = {hashes[i : i + HASH_BYTES] for i in range(0, len(hashes), HASH_BYTES)}
        assert not (await subject.answer(prompt, max_tokens=1)).cached_tokens
        return set((await subject.ledger_becomes(lambda blocks: blocks >= own)).blocks()), own

    before, _ = await told("blackbird")
    await subject.stats_become(lambda stats: not stats.running, within_s=subject.soon_s)
    steps_before = await steps_measured(engine)
    tokens_before = engine.stats().prefill_tokens  # only now: SGLang tells of a step after its answer and its events
    for _ in range(PROBES):
        await probe()
        stats = engine.stats()
        assert stats.running == stats.waiting == stats.used_blocks == 0
    assert await steps_measured(engine) == pytest.approx(steps_before)
    after, own = await told("nightingale")
    assert len(own) == 2
    assert after - before == own
    await subject.stats_become(
        lambda stats: probe_work.without(stats).prefill_tokens == tokens_before + 2 * size + 1, within_s=subject.soon_s
    )


async def steps_measured(engine: Any) -> tuple[float, float]:
    """The measured times, once nothing changes them any more: engines tell of a step after its answer."""
    before = None
    while (now := (engine.stats().step_s, engine.stats().request_step_s)) != before:
        before = now
        await asyncio.sleep(0.5)
    return now
