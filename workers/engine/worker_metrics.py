"""Each worker's metrics in /metrics. A new metric is one entry here: API replicas show all that they find in Redis."""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

from app.engines.base import EngineStats
from app.messages.lease import WorkerMetric
from app.runner.runner import Runner
from app.running.loops import failures

Kind = Literal["counter", "gauge"]
Reading = Callable[[Runner, EngineStats], float]


class Definition(NamedTuple):
    name: str  # without `_total`
    kind: Kind
    meaning: str
    read: Reading


def _counter(name: str, meaning: str, read: Reading) -> Definition:
    return Definition(name, "counter", meaning, read)


def _gauge(name: str, meaning: str, read: Reading) -> Definition:
    return Definition(name, "gauge", meaning, read)


def _of_stats(kind: Kind, **meanings: str) -> list[Definition]:
    """Definitions of the engine's own counts, by their names."""
    return [
        Definition(f"xylem_worker_{name}", kind, meaning, partial(_stat, name)) for name, meaning in meanings.items()
    ]


def _stat(name: str, _: Runner, stats: EngineStats) -> float:
    count: float = getattr(stats, name)
    return count


def _of_pictures(**meanings: str) -> list[Definition]:
    return [
        _counter(f"xylem_worker_pictures_{name}", meaning, partial(_pictures, name))
        for name, meaning in meanings.items()
    ]


def _pictures(name: str, runner: Runner, _: EngineStats) -> float:
    count: float = getattr(runner.pictures, name)
    return count


DEFINITIONS = (
    _counter(
        "xylem_worker_busy_seconds",
        "Seconds in which the engine had anything to do.",
        lambda runner, _: runner.throughput.working.seconds,
    ),
    _gauge(
        "xylem_worker_load_seconds",
        "How long the engine took to start, with its model.",
        lambda runner, _: runner.load_s,
    ),
    _gauge(
        "xylem_worker_loop_delay_seconds",
        "The longest time in the last 15 s that the engine's event loop was late.",
        lambda runner, _: runner.loop_delay_s,
    ),
    _counter(
        "xylem_worker_loop_failures",
        "Turns of its background loops that failed: logged, and tried again.",
        lambda _runner, _: failures(),
    ),
    _gauge(
        "xylem_worker_seats",
        "Requests that the engine runs at once, at most.",
        lambda runner, _: runner.info.max_running * runner.info.ranks,
    ),
    _gauge(
        "xylem_worker_total_blocks",
        "KV blocks that the engine has.",
        lambda runner, _: runner.info.total_blocks * runner.info.ranks,
    ),
    *_of_stats(
        "gauge",
        running="Requests that the engine runs.",
        waiting="Requests that wait in the engine.",
        used_blocks="KV blocks in use.",
        lent_blocks="Of these, kept for engines that decode.",
    ),
    *_of_stats(
        "counter",
        prefill_tokens="Prompt tokens that the engine has computed.",
        pulled_tokens="Prompt tokens whose KV came from another engine.",
    ),
    *_of_stats(
        "gauge",
        host_bytes_per_s="Bytes of KV a second from the tier in host memory, lately.",
        store_bytes_per_s="Bytes of KV a second from the tier's store, lately.",
    ),
    *_of_pictures(
        encoded="Pictures that it has encoded for other workers.",
        found="Pictures for other workers that it had encoded before.",
        fetched="Encoded pictures that it got from another worker.",
        lost="Encoded pictures that another worker had, and it did not get as they should be: it encodes them itself.",
        missing="Pictures that no worker had encoded: it encodes them itself.",
    ),
    _counter(
        "xylem_worker_kv_blocks_left_out",
        "KV blocks that the engine has told of, and that the prefix index can't have.",
        lambda runner, _: runner.kv_blocks_left_out,
    ),
    _gauge("xylem_worker_adapters", "LoRA adapters that it answers with.", lambda runner, _: len(runner.adapters.open)),
)


def metrics(runner: Runner, stats: EngineStats) -> list[WorkerMetric]:
    stats = runner.probed.without(stats)
    worker_metrics = [
        WorkerMetric(name, kind, meaning, read(runner, stats)) for name, kind, meaning, read in DEFINITIONS
    ]
    return worker_metrics + of_some(stats)


def of_some(stats: EngineStats) -> list[WorkerMetric]:
    """Metrics that only engines have that paint, or speculate."""
    worker_metrics = []
    if stats.paint_steps:
        what = "Steps of pictures that the engine has computed."
        worker_metrics.append(WorkerMetric("xylem_worker_paint_steps", "counter", what, stats.paint_steps))
    return worker_metrics + _speculation(stats) if stats.drafts else worker_metrics


def _speculation(stats: EngineStats) -> list[WorkerMetric]:
    return [
        WorkerMetric("xylem_worker_drafts", "counter", "How often the engine drafted tokens.", stats.drafts),
        WorkerMetric("xylem_worker_drafted_tokens", "counter", "Tokens that it drafted.", stats.drafted_tokens),
    ] + [
        WorkerMetric(
            f"xylem_worker_accepted_tokens_{position}",
            "counter",
            f"Of the tokens at position {position} of a draft, from 1, those that were accepted.",
            tokens,
        )
        for position, tokens in enumerate(stats.accepted_tokens, 1)
    ]
