"""Faults one after the other under load, and what became of every request."""

import asyncio
import itertools
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tests.chaos.batches import wrong_lines
from tests.chaos.faults import SILENT, Fault
from tests.chaos.fleet import Fleet
from tests.chaos.index_truth import Compared, compared
from tests.chaos.load import Asked, Case, Load
from tests.chaos.usage_truth import Used, used


@dataclass
class Report:
    requests: int = 0
    lost: int = 0  # without an end, or with less than was to come
    duplicated: int = 0  # with more than was to come, or more than one end
    failed: int = 0  # ended by an error
    resumed: int = 0
    restarted: int = 0
    recovery_s: list[float] = field(default_factory=list)  # one for each fault, from the end of its outage
    silent_s: list[float] = field(default_factory=list)  # the same, of faults of which only time tells
    by_fault: dict[str, list[float]] = field(default_factory=dict)
    lasted_s: dict[str, float] = field(default_factory=dict)  # by fault, the longest outage
    bad: list[str] = field(default_factory=list)
    batches: int = 0  # each with a line that kills batch workers
    batch_deaths: int = 0  # of batch workers
    leaked_blocks: int = 0
    leaked_processes: int = 0
    index: Compared = field(default_factory=Compared)  # of the pool with tiers
    usage: Used = field(default_factory=Used)


def judge(asked: Asked) -> str:
    """'ok', 'failed', 'lost' or 'duplicated'."""
    want, answer = asked.case.expected, asked.seen
    assert want is not None
    if answer.errors:
        return "failed"
    if answer.same(want):
        return "ok"
    longer = [answer.texts.get(i, "") for i in want.texts if len(answer.texts.get(i, "")) > len(want.texts[i])]
    many = answer.ends > 1 or any(len(f) > 1 for f in answer.finishes.values()) or len(answer.usages) > 1
    return "duplicated" if longer or many else "lost"


def stall(asked: Asked, since: float, until: float, outages: Sequence[tuple[float, float]] = ()) -> float:
    """The longest time in that window without anything of an answer that was on its way at its begin.

    What of it is in one of the `outages`, which follow one another, is the fault's own length and doesn't count.
    """
    times = [t for t in asked.times if t <= until]
    if asked.ended and asked.ended < since:
        return 0.0
    edges = [max((t for t in times if t <= since), default=since), *(t for t in times if t > since)]
    gaps = [gap for pair in itertools.pairwise(edges) for gap in _outside(*pair, outages)]
    return max((b - a for a, b in gaps), default=0.0)


def _outside(a: float, b: float, outages: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The parts of the time from a to b that are in no outage."""
    parts = []
    for began, end in outages:
        if a < end and began < b:
            parts.append((a, max(a, began)))
            a = min(b, end)
    return [*parts, (a, b)]


async def run(
    fleet: Fleet,
    cases: list[Case],
    faults: Iterable[Fault],
    *,
    seed: int,
    clients: int,
    tell: Callable[[int, str, float], None] = lambda *_: None,
) -> Report:
    """`tell(number, fault, recovery in s)` after each. Raises: TimeoutError when a fleet doesn't become whole again."""
    rng, report = random.Random(seed), Report()
    load = Load(fleet, seed)
    await load.learn(cases)
    load.start(clients)
    await asyncio.sleep(1)
    for number, fault in enumerate(faults, 1):
        await asyncio.sleep(rng.uniform(0.1, 1.0))
        began, hit = time.monotonic(), set(load.running)
        fleet.outages.clear()
        await fault(fleet, rng)
        await asyncio.to_thread(fleet.wait_whole, missing=1)  # the last one may still load when the next fault comes
        await _all_got_on(hit, time.monotonic())
        took = max((stall(request, began, time.monotonic(), fleet.outages) for request in hit), default=0.0)
        outage_s = max((until - since for since, until in fleet.outages), default=0.0)
        report.lasted_s[fault.__name__] = max(outage_s, report.lasted_s.get(fault.__name__, 0.0))
        (report.silent_s if fault in SILENT else report.recovery_s).append(took)
        report.by_fault.setdefault(fault.__name__, []).append(took)
        tell(number, fault.__name__, took)
    await asyncio.to_thread(fleet.wait_whole)
    await load.finish()
    _account(report, load.done)
    await asyncio.to_thread(_account_batches, report, fleet)
    report.leaked_blocks = await leaked_blocks(fleet)
    if fleet.usage is not None:
        report.usage = await asyncio.to_thread(used, fleet, load.done)
    if fleet.store is not None:
        report.index = await asyncio.to_thread(compared, fleet, "decode-pool-a")
    return report


def _account(report: Report, done: Sequence[Asked]) -> None:
    kinds = Counter(judge(request) for request in done)
    report.requests = len(done)
    report.lost, report.duplicated, report.failed = kinds["lost"], kinds["duplicated"], kinds["failed"]
    report.resumed = sum(request.resumed for request in done)
    report.restarted = sum(request.restarted for request in done)
    report.bad = [f"{kind}: {_described(request)}" for request in done if (kind := judge(request)) != "ok"]


def _account_batches(report: Report, fleet: Fleet) -> None:
    """Waits for their ends. Their lines are lost, duplicated and failed as requests are."""
    wrong = wrong_lines(fleet, fleet.batches)
    kinds = Counter(kind for kind, _ in wrong)
    report.lost += kinds["lost"]
    report.duplicated += kinds["duplicated"]
    report.failed += kinds["failed"]
    report.bad += [f"{kind}: {what}" for kind, what in wrong]
    report.batches, report.batch_deaths = len(fleet.batches), fleet.batch_deaths


def _described(asked: Asked) -> str:
    want, answer = asked.case.expected, asked.seen
    assert want is not None
    lengths = {i: (len(answer.texts.get(i, "")), len(want.texts[i])) for i in want.texts}
    return (
        f"{asked.case.path} errors={answer.errors} ends={answer.ends} finishes={answer.finishes} "
        f"usage={answer.usages}/{want.usages} "
        f"characters={lengths} resumed={asked.resumed} restarted={asked.restarted}"
    )


async def _all_got_on(hit: set[Asked], since: float) -> None:
    """Returns when each of them has ended or got something since then."""
    async with asyncio.timeout(130):
        while any(not a.ended and a.times[-1] < since for a in hit):
            await asyncio.sleep(0.05)


async def leaked_blocks(fleet: Fleet) -> int:
    """The number of blocks that are still held some seconds after the last answer."""
    for _ in range(60):
        if not (blocks := await asyncio.to_thread(fleet.leaked_blocks)):
            return 0
        await asyncio.sleep(0.25)
    return blocks


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)] if values else 0.0
