"""Bursts for a prompt that one of two busy workers has cached, with peers and without; on the mock, with real NIXL."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

import httpx

from ops.bench.parts import Say
from ops.bench.size import Size
from ops.bench.tiers.asking import Answer, ask, prompt
from tests.stack import Stack, stack, valkey

_POOL, _MODEL, _SEATS, _BURST, _ANSWER = "peers", "mock", 4, 16, 100  # tokens
_PROMPT, _BLOCK_BYTES = 6_400, 1_000_000
_HANDOFF = {"nixl": True, "block_bytes": _BLOCK_BYTES, "lease_s": 30.0}
# As an 8B model on a GPU that answers long prompts; the prompt takes it 3.2 s, and an answer 1 s.
_ARGS = {"step_ms": 10.0, "total_blocks": 1024, "prefill_tokens_per_s": 2_000.0, "handoff": _HANDOFF}
_START_S = 60.0


def measured(out_dir: Path, size: Size, say: Say) -> dict[str, Any]:
    """`peers_ttft_ratio`: mean TTFT of bursts with peers over that without, in turns; likewise of whole answers.

    Raises: Unavailable.
    """
    times: dict[bool, list[Answer]] = {True: [], False: []}
    with ExitStack() as running:
        say("peers: starting four workers")
        fleets = {
            peers: running.enter_context(_served(out_dir / f"peers-{peers}", peers=peers, forks=size.smallest))
            for peers in times
        }
        for turn in range(size.of(10, 2, 1)):
            for peers, s in fleets.items():
                say(f"peers: burst {turn + 1} {'with' if peers else 'without'}")
                times[peers] += _burst(s, turn, size)
    ttfts = {peers: mean(a.ttft_s for a in answers) for peers, answers in times.items()}
    whole = {peers: mean(a.whole_s for a in answers) for peers, answers in times.items()}
    return {
        "peers_ttft_ratio": ttfts[True] / ttfts[False],
        "peers_answer_ratio": whole[True] / whole[False],
        "burst_ttft_s": {"with": ttfts[True], "without": ttfts[False]},
        "burst_answer_s": {"with": whole[True], "without": whole[False]},
    }


def _burst(s: Stack, turn: int, size: Size) -> list[Answer]:
    """Answers to a burst of requests for a prompt that no burst before had. Raises: Unavailable."""
    ids, tokens = prompt(turn, size.of(_PROMPT, _PROMPT, _PROMPT // 10)), size.of(_ANSWER, _ANSWER, _ANSWER // 10)
    with httpx.Client(base_url=s.url, timeout=120) as client, ThreadPoolExecutor(_BURST) as threads:
        ask(client, _MODEL, ids, tokens)
        return list(threads.map(lambda _: ask(client, _MODEL, ids, tokens), range(_BURST)))


@contextmanager
def _served(run_dir: Path, *, peers: bool, forks: bool) -> Iterator[Stack]:
    pool = {
        "model": _MODEL, "engine": "mock", "max_model_len": 8192, "max_running": _SEATS, "peers": peers, "args": _ARGS
    }  # fmt: skip
    (run_dir / "redis").mkdir(parents=True)
    with valkey(run_dir / "redis") as url, stack(url, run_dir, {_POOL: pool}) as s:
        s.forks = forks
        s.api()
        for number in range(2):
            s.worker(_POOL, f"worker-{number}")
        s.wait_ready(2, _MODEL, _START_S)
        yield s
