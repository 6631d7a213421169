"""KV transfers with `app/kv/nixl.py` against bare NIXL: the same two processes, memory and blocks, in turns."""

import asyncio
import base64
import json
import secrets
import sys
import time
from collections.abc import Awaitable
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import uvloop

from app.kv.nixl import Nixl
from app.kv.spans import merged
from ops.bench.disagg.holder import SPACE, UNIT, Bare, memory
from ops.bench.loop import watched
from ops.bench.parts import Say
from ops.bench.processes import process, wait_until
from ops.bench.size import Size

MIB = 2**20
# Bytes in all, bytes of a block, and whether blocks are adjacent at both ends.
CASES = (
    (1 * MIB, 64 * 2**10, True), (1 * MIB, 64 * 2**10, False),
    (16 * MIB, 4 * MIB, True), (16 * MIB, 4 * MIB, False), (16 * MIB, 64 * 2**10, False),
    (256 * MIB, 4 * MIB, True), (256 * MIB, 4 * MIB, False), (256 * MIB, 64 * 2**10, False),
)  # fmt: skip
_WARM_UP = 3  # turns that don't count
_TICK_S = 0.001  # how often to check whether the event loop is free


def transfer(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """A row per case; `nixl_efficiency` by size is the worst of its cases. Raises: Unavailable."""
    log = directory / "holder.log"
    with process([sys.executable, "-m", "ops.bench.disagg.holder"], log) as child:
        wait_until(lambda: b"metadata" in log.read_bytes(), 60, {log: child})
        holder = json.loads(next(line for line in log.read_text().splitlines() if '"metadata"' in line))
        rows = uvloop.run(_measure(holder, size, say))
    by_size = {size: min(r["efficiency"] for r in rows if r["bytes"] == size) for size in {r["bytes"] for r in rows}}
    return {
        "transfer": rows,
        "nixl_efficiency": {size // MIB: by_size[size] for size in sorted(by_size)},
        "nixl_efficiency_min": min(by_size.values()),
        "nixl_loop_held_ms": max(r["loop_held_ms"] for r in rows),
    }


async def _measure(holder: dict[str, Any], length: Size, say: Say) -> list[dict[str, Any]]:
    memory_ = memory()
    ours, bare = Nixl(f"ours-{secrets.token_hex(4)}", lambda _note: None), Bare(memory_.address)
    await ours.start(memory_.address, SPACE)
    metadata = {name: base64.b64decode(text) for name, text in holder["metadata"].items()}
    await ours.connect(holder["ours"], metadata[holder["ours"]])
    bare.agent.add_remote_agent(metadata[holder["bare"]])
    rows = []
    for size, block, adjacent in length.of(CASES, CASES, CASES[:3]):
        say(f"transfer: {size // MIB} MiB in {'adjacent' if adjacent else 'scattered'} blocks of {block // 1024} KiB")
        blocks = _blocks(size, block, adjacent)
        here = [(memory_.address + a, holder["address"] + b) for a, b in blocks]
        spans = merged(here, block)  # bare NIXL gets merged spans as well, since that is faster
        bare_s, ours_s, stalls_s = [], [], []
        for turn in range(
            _WARM_UP + length.of(max(10, 1600 * MIB // (4 * MIB + size)), max(10, 400 * MIB // (4 * MIB + size)), 2)
        ):
            began = time.perf_counter()
            bare.read(holder["bare"], spans)
            middle = time.perf_counter()
            await asyncio.sleep(0.002)  # so that neither is slowed by unfinished work of the other
            moving = _seconds(ours.move("READ", holder["ours"], here, block, b"note", timeout_s=10))
            took, stall_s = await watched(moving, _TICK_S)
            if turn >= _WARM_UP:
                bare_s.append(middle - began)
                ours_s.append(took)
                stalls_s.append(stall_s)
            await asyncio.sleep(0.002)
        for a, b in blocks:
            assert memory_.holds(a // UNIT, b // UNIT), "what came is not what was asked for"
        rows.append(
            {
                "bytes": size, "block": block, "adjacent": adjacent, "descriptors": len(spans), "pairs": len(ours_s),
                "bare_ms": 1e3 * median(bare_s), "ours_ms": 1e3 * median(ours_s),
                "efficiency": median(a / b for a, b in zip(bare_s, ours_s, strict=True)),
                "loop_held_ms": 1e3 * median(stalls_s),
            }
        )  # fmt: skip
    await ours.close()
    return rows


async def _seconds(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


def _blocks(size: int, block: int, adjacent: bool) -> list[tuple[int, int]]:
    """Offsets on both sides. Scattered: in random order, with a hole after each block."""
    count = size // block
    if adjacent:
        return [(i * block, i * block) for i in range(count)]
    rng, slots = Random(size + block), [2 * i for i in range(SPACE // block // 2)]
    return [(a * block, b * block) for a, b in zip(rng.sample(slots, count), rng.sample(slots, count), strict=True)]
