"""A rolling restart of real vLLM workers that share a store: the hit rate of prompts after it over before."""

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import httpx

from ops.bench.parts import Say
from ops.bench.size import Size
from ops.bench.tiers.asking import ask, prompt
from tests.shallow import shallow_model
from tests.stack import Stack, stack, stop, valkey

_POOL, _MODEL, _WORKERS, _BLOCK = "tiered", "bench", 2, 32
_BLOCK_BYTES = 4 * 2 * 3 * 64 * 4 * _BLOCK  # layers of the shallow model, keys and values, heads, head size, float32
_ROOM = 40  # blocks of an engine's own cache, a quarter of what the prompts have in common
_BEGINNINGS, _COMMON, _OWN = 12, 384, 64  # of prompts; tokens that those of one beginning share, and tokens of its own
_ENV = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
_START_S = 480.0  # of workers, as long as for a fleet: the machine may be busy


class Prompts:
    """Each has one of a few beginnings, and an end of its own."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self._beginnings = [prompt(seed, _COMMON) for seed in range(_BEGINNINGS)]
        self._ends, self._rng = count(10_000), Random(0)

    def rounds(self, times: int) -> list[float]:
        """The hit rate of each round, in which each beginning comes once. Raises: Unavailable."""
        return [self._round() for _ in range(times)]

    def _round(self) -> float:
        order = self._rng.sample(self._beginnings, _BEGINNINGS)
        answers = [ask(self._client, _MODEL, begin + prompt(next(self._ends), _OWN), 2) for begin in order]
        return sum(a.cached_tokens for a in answers) / sum(a.prompt_tokens for a in answers)


def measured(out_dir: Path, size: Size, say: Say) -> dict[str, Any]:
    """`rolling_restart_hit_ratio` with a store, and without tiers. Raises: Unavailable."""
    size.needs("real vLLM", "vllm")
    rounds = size.of(10, 2, 1)
    tiers = {"host_gb": 0.1, "disk": str(out_dir / "kv")}
    with_store = _restarted(out_dir / "store", rounds, tiers, say)
    without = _restarted(out_dir / "none", rounds, None, say)
    return {
        "rolling_restart_hit_ratio": _ratio(with_store, rounds),
        "rolling_restart_hit_ratio_without": _ratio(without, rounds),
        "hit_rate_before": statistics.mean(with_store[:rounds]),
        "hit_rate_before_without": statistics.mean(without[:rounds]),
        "hits_over_time": {"with a store": with_store, "without tiers": without},
    }


def _ratio(rates: Sequence[float], rounds: int) -> float:
    return statistics.mean(rates[-rounds:]) / statistics.mean(rates[:rounds])


def _restarted(run_dir: Path, rounds: int, tiers: dict[str, Any] | None, say: Say) -> list[float]:
    """Hit rates of the rounds before, one between two workers' restarts, and of those after. Raises: Unavailable."""
    what = "without tiers" if tiers is None else "with a store"
    say(f"{what}: loading the system")
    with _served(run_dir, tiers) as s, httpx.Client(base_url=s.url, timeout=120) as client:
        workers = [s.worker(_POOL, f"old-{i}") for i in range(_WORKERS)]
        s.wait_ready(_WORKERS, _MODEL, _START_S)
        prompts = Prompts(client)
        say(f"{what}: before the restart")
        prompts.rounds(2)  # fills the caches
        rates = prompts.rounds(rounds)
        for number, worker in enumerate(workers):
            say(f"{what}: restarting worker {number + 1}")
            stop(worker)
            s.worker(_POOL, f"new-{number}")
            s.wait_ready(_WORKERS, _MODEL, _START_S)
            if number + 1 < _WORKERS:
                rates += prompts.rounds(1)
        say(f"{what}: after the restart")
        return rates + prompts.rounds(rounds)


@contextmanager
def _served(run_dir: Path, tiers: dict[str, Any] | None) -> Iterator[Stack]:
    pool = {
        "model": _MODEL, "engine": "vllm", "path": str(shallow_model()), "block_size": _BLOCK, "max_model_len": 512,
        "max_running": 4, "args": {"kv_cache_memory_bytes": _ROOM * _BLOCK_BYTES}, "tiers": tiers,
    }  # fmt: skip
    (run_dir / "redis").mkdir(parents=True)
    with valkey(run_dir / "redis") as url, stack(url, run_dir, {_POOL: pool}, **_ENV) as s:
        s.api()
        yield s
