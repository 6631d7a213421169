"""The four parts of `serve`; each starts its systems, measures, and stops them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from ops.bench.dynamo import dynamo
from ops.bench.engines.own_time import own_ms
from ops.bench.load import System
from ops.bench.measures import FAST, MEMORY_KEY, PACED, SHORT, SMALLEST, STREAMS, VLLM
from ops.bench.processes import Unavailable
from ops.bench.profiler import profile
from ops.bench.runs import Runs, Sides
from ops.bench.stats import Finding
from ops.bench.systems import vllm_server, xylem

_NO_DELAY = 1_000_000  # the speed-up of Dynamo's mocker, which can't be infinite
_MOCK_WORKERS = 2
MOCKER = {"block_size": 64, "max_running": 256}  # of Dynamo's mocker; ours gets the same
MOCKER_BLOCKS = 16384
_USUAL_PACE = {"step_ms": 5.7, "step_ms_per_sequence": 0.01}  # of that mocker, if it can't be measured
_VLLM_ARGS = {"dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 2**30}


def fast(runs: Runs, profiled: bool) -> Iterator[Finding]:
    """Engines without delay: the system's CPU for a request and for a token; memory."""
    with ExitStack() as stack:
        pool = _mock_pool(runs.model_dir, {"speedup": float(_NO_DELAY)})
        sides = _start(
            stack, runs, "dynamo",
            lambda: xylem(runs.out_dir / "fast-xylem", pool, _MOCK_WORKERS),
            lambda: dynamo(runs.out_dir / "fast-dynamo", runs.model_dir, _NO_DELAY, runs.size),
        )  # fmt: skip
        for measure in FAST:
            yield from runs.compare(measure, sides)
        yield _memory(runs, sides.ours, sides.reason)
        if profiled and sides.ours is not None:
            for measure in FAST:
                profile(runs, sides.ours, measure)


def paced(runs: Runs, profiled: bool) -> Iterator[Finding]:
    """Both mock engines at the speed of Dynamo's, which simulates a real one: tokens come one by one."""
    runs.size.needs("NVIDIA Dynamo")  # the one figure is a ratio
    with ExitStack() as stack:
        theirs = _start(
            stack, runs, "dynamo", None,
            lambda: dynamo(runs.out_dir / "paced-dynamo", runs.model_dir, 1, runs.size),
        )  # fmt: skip
        pace = _USUAL_PACE if theirs.theirs is None else _pace_of(runs, theirs.theirs)
        pool = _mock_pool(runs.model_dir, pace)
        ours = _start(stack, runs, "dynamo", lambda: xylem(runs.out_dir / "paced-xylem", pool, _MOCK_WORKERS), None)
        sides = replace(theirs, ours=ours.ours, reason=ours.reason or theirs.reason)
        yield from runs.compare(PACED, sides)
        if profiled and sides.ours is not None:
            profile(runs, sides.ours, PACED)


def vllm(runs: Runs, profiled: bool) -> Iterator[Finding]:
    """Real vLLM behind Xylem against vLLM's own server, on the same cores.

    Both are up, one at a time is asked: an idle vLLM took under 1 % of a core, so restarts would cost more
    than they'd teach. A full run starts the pair twice, since two processes of the same server differ too.
    """
    runs.size.needs("real vLLM")
    shape = {"block_size": 32, "max_model_len": 2048}
    pool = {"model": "bench", "engine": "vllm", "path": str(runs.model_dir), **shape, "max_running": 64}
    pair_findings: list[list[Finding]] = []
    for pair in range(runs.size.of(2, 1, 1)):
        with ExitStack() as stack:
            sides = _start(
                stack, runs, "vllm",
                lambda: xylem(runs.out_dir / f"xylem-vllm-{pair}", {**pool, "args": _VLLM_ARGS}, 1),  # noqa: B023 (called at once)
                lambda: vllm_server(
                    runs.out_dir / f"vllm-{pair}", runs.model_dir, {**_VLLM_ARGS, **shape, "max_num_seqs": 64}  # noqa: B023 (called at once)
                ),
            )  # fmt: skip
            pair_findings.append([*runs.compare(VLLM, sides), _own_time(runs, sides.ours)])
            if profiled and sides.ours is not None:
                profile(runs, sides.ours, VLLM)
    for parts in zip(*pair_findings, strict=True):
        reason = next((part.reason for part in parts if part.reason), None)
        ours, theirs = [x for part in parts for x in part.ours], [x for part in parts for x in part.theirs]
        yield replace(parts[0], ours=ours, theirs=theirs, reason=reason)


def _own_time(runs: Runs, system: System | None) -> Finding:
    """Milliseconds from the client to the engine, and from its first output to the client."""
    finding = Finding("vllm_own_ms_p50", "real vLLM, one request a second", "own time, ms", "ours", target=10.0)
    if system is None:
        return replace(finding, reason="the system was not started")
    runs.say(finding.title)
    try:
        return replace(finding, ours=[to + back for to, back in own_ms(system.url, "bench", runs.size)])
    except Unavailable as exc:
        return replace(finding, reason=str(exc))


def _start(
    stack: ExitStack, runs: Runs, rival: str,
    ours: Callable[[], AbstractContextManager[System]] | None,
    theirs: Callable[[], AbstractContextManager[System]] | None,
) -> Sides:  # fmt: skip
    """Starts the systems asked for; `stack` stops them."""
    reasons: list[str] = []
    up: list[System | None] = []
    for name, start in (("xylem", ours), (rival, theirs)):
        up.append(None)
        if start is None:
            continue
        runs.say(f"starting {name}")
        try:
            up[-1] = stack.enter_context(start())
        except Unavailable as exc:
            reasons.append(f"{name}: {exc}")
    return Sides(up[0], up[1], rival, "; ".join(reasons) or None)


def _mock_pool(model_dir: Path, args: dict[str, Any]) -> dict[str, Any]:
    shape = {**MOCKER, "max_model_len": 8192, "args": {"total_blocks": MOCKER_BLOCKS, **args}}
    return {"model": "mock", "engine": "mock", "path": str(model_dir), **shape}


def _pace_of(runs: Runs, system: System) -> dict[str, Any]:
    """The step time of an engine with 1 and with 32 sequences, as a client sees it, as our mock's arguments."""
    runs.say("measuring the speed of Dynamo's mocker")
    alone = runs.one(system, "pace-1", [*STREAMS, "--concurrency=2", "--requests=4", "--warmup=2"])
    full = runs.one(system, f"pace-{64 // _MOCK_WORKERS}", [*STREAMS, "--requests=128"])
    one, many = alone["tpot_ms"]["p50"], full["tpot_ms"]["p50"]
    per_sequence = max(0.0, (many - one) / (64 / _MOCK_WORKERS - 1))
    return {"step_ms": round(one - per_sequence, 4), "step_ms_per_sequence": round(per_sequence, 5)}


def _memory(runs: Runs, system: System | None, reason: str | None) -> Finding:
    """RSS of the API process, MiB: after a warm-up, then after each tenth of the requests."""
    total = runs.size.of(100_000, 2_000, 80)
    rss: list[float] = []
    title = f"API memory over {total:,} short requests"
    finding = Finding(MEMORY_KEY, title, "RSS, MiB", "growth", target=5.0, reason=reason)
    if system is None:
        return finding
    try:
        for part in range(runs.size.of(11, 11, 2)):
            runs.say(f"{title}: {part} of 10")
            runs.one(system, MEMORY_KEY, [*SHORT, "--requests", str(total // 10), *runs.size.of([], [], SMALLEST)])
            rss.append(psutil.Process(system.watch["api"][0]).memory_info().rss / 2**20)
    except (Unavailable, psutil.Error) as exc:
        return replace(finding, ours=rss, reason=str(exc))
    return replace(finding, ours=rss, reason=None)
