"""The cost of `key_file`.

Compares the time of a prompt that real vLLM loads from an encrypted store with that from one that is not, in pairs.
Measures sealing and opening a block, alone.
"""

import os
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from app.kv_store.seal import BlockSeal
from ops.bench.load import System
from ops.bench.parts import Say
from ops.bench.processes import Unavailable
from ops.bench.size import Size
from ops.bench.tiers.asking import Answer, ask, prompt
from ops.bench.tiers.served import BLOCK, BLOCK_BYTES, TOKENS, served

_PROMPTS = 6  # of which engine and host memory have room for two each: each turn loads all from the store
_HOST_GB = 2.2 * TOKENS / BLOCK * BLOCK_BYTES / 1e9
_KINDS = ("plain", "encrypted")


def measured(out_dir: Path, size: Size, say: Say) -> dict[str, Any]:
    """`encrypted_load_ratio`: the median of the pairs. Raises: Unavailable."""
    size.needs("real vLLM", "vllm")
    (key := out_dir / "key").write_bytes(os.urandom(32))
    keys = {"plain": {}, "encrypted": {"key_file": str(key)}}
    prompts = [prompt(1_000 + seed, TOKENS) for seed in range(_PROMPTS)]
    with ExitStack() as systems:
        running: dict[str, tuple[System, httpx.Client]] = {}
        for kind in _KINDS:
            say(f"loading the system, {kind}")
            tiers = {"host_gb": _HOST_GB, "disk": str(out_dir / kind), **keys[kind]}
            running[kind] = systems.enter_context(served(out_dir / f"run-{kind}", tiers))
            system, client = running[kind]
            client.headers["x-xylem-explain"] = "1"
            say(f"computing, {kind}")
            for ids in prompts * 2:  # loaded once before it counts
                ask(client, system.model, ids)
        pairs = []
        for turn in range(size.of(10, 4, 1)):
            for number, ids in enumerate(prompts):
                say(f"turn {turn + 1}, prompt {number + 1}")
                order = _KINDS if (turn + number) % 2 else _KINDS[::-1]  # neither is always the first
                ttft = {kind: _loaded(*running[kind], ids).ttft_s for kind in order}
                pairs.append((ttft["plain"], ttft["encrypted"]))
    return {
        "encrypted_load_ratio": statistics.median(encrypted_s / plain_s for plain_s, encrypted_s in pairs),
        "plain_store_ttft_ms": 1000 * statistics.median(plain_s for plain_s, _ in pairs),
        "encrypted_store_ttft_ms": 1000 * statistics.median(encrypted_s for _, encrypted_s in pairs),
        "encrypted_pairs": pairs,
        **sealing(),
    }


def sealing() -> dict[str, Any]:
    """MB/s of one thread, for a block as above."""
    name, data = b"name", os.urandom(BLOCK_BYTES)
    speeds = {}
    for kind, seal in (("", BlockSeal()), ("encrypted_", BlockSeal(os.urandom(32)))):
        sealed_block = seal.close(name, data)
        speeds[f"{kind}close_mb_per_s"] = _speed(lambda seal=seal: seal.close(name, data))  # type: ignore[misc]
        speeds[f"{kind}open_mb_per_s"] = _speed(lambda seal=seal, block=sealed_block: seal.open(name, block))  # type: ignore[misc]
    return speeds


def _speed(work: Callable[[], object], times: int = 200) -> float:
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return BLOCK_BYTES / 1e6 / statistics.median(seconds)


def _loaded(system: System, client: httpx.Client, ids: list[int]) -> Answer:
    """Raises: Unavailable if it came from elsewhere than the store."""
    answer = ask(client, system.model, ids)
    if answer.stored_blocks < TOKENS // BLOCK - 1 or answer.cached_tokens < TOKENS - 2 * BLOCK:
        raise Unavailable(
            f"{answer.stored_blocks} blocks were in the store, {answer.cached_tokens} tokens not computed"
        )
    return answer
