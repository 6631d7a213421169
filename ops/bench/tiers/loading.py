"""Real vLLM: the first token of a prompt that is loaded from a tier over that of the same prompt when it was computed;
and how long others wait for their tokens meanwhile."""

import json
import statistics
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx

from ops.bench.load import System, run_load
from ops.bench.parts import Say
from ops.bench.processes import Unavailable
from ops.bench.size import Size
from ops.bench.tiers.asking import Answer, ask, prompt
from ops.bench.tiers.served import BLOCK, TOKENS, served

_LEAST = TOKENS - 2 * BLOCK  # tokens of a prompt that is loaded, or cached
_EVERY_S = 0.5  # a prompt comes beside the streams
_STREAMS = [
    "--stream", "--concurrency", "2", "--max-tokens", "100", "--prompt", "unique", "--prompt-words", "10",
    "--extra-body", json.dumps({"ignore_eos": True, "temperature": 0}), "--max-seconds", "60",
]  # fmt: skip


def measured(out_dir: Path, size: Size, say: Say) -> dict[str, Any]:
    """`vllm_evicted_ttft_ratio`, `vllm_restart_ttft_ratio`, `wrong_answers`, `p99_itl_ratio`. Raises: Unavailable."""
    size.needs("real vLLM", "vllm")
    prompts = [prompt(seed, TOKENS) for seed in range(size.of(12, 4, 3))]
    turns = size.of(5, 2, 1)
    tiers = {"host_gb": 1.0, "disk": str(out_dir / "kv")}
    say("loading the system")
    with served(out_dir / "first", tiers) as (system, client):
        ask(client, system.model, prompt(-1, 64))
        say("computing")
        computed_answers = [ask(client, system.model, ids) for ids in prompts]
        say("loading from host memory")
        evicted_answers = [[ask(client, system.model, ids) for ids in prompts] for _ in range(turns)]
        waits = _beside(system, client, prompts, out_dir, turns, size.of("6", "4", "2"), say)
    say("loading the system anew")
    with served(out_dir / "second", tiers) as (system, client):
        ask(client, system.model, prompt(-1, 64))
        say("loading from disk")
        restart_answers = [ask(client, system.model, ids) for ids in prompts]
    return figures(computed_answers, evicted_answers, restart_answers) | waits


def figures(computed: Sequence[Answer], evicted: Sequence[Sequence[Answer]], after: Sequence[Answer]) -> dict[str, Any]:
    """Medians of the prompts' ratios. Raises: Unavailable if something was not loaded."""
    host_answers = [answer for turn in evicted for answer in turn]
    if min(answer.cached_tokens for answer in [*host_answers, *after]) < _LEAST:
        raise Unavailable("a prompt was computed that should have been loaded")
    wrong = sum(a.text != b.text for turn in [*evicted, after] for a, b in zip(computed, turn, strict=True))
    ratios = [b.ttft_s / a.ttft_s for turn in evicted for a, b in zip(computed, turn, strict=True)]
    return {
        "vllm_evicted_ttft_ratio": statistics.median(ratios),
        "vllm_restart_ttft_ratio": statistics.median(b.ttft_s / a.ttft_s for a, b in zip(computed, after, strict=True)),
        "wrong_answers": wrong,
        "answers_compared": len(host_answers) + len(after),
        "computed_ttft_ms": 1000 * statistics.median(answer.ttft_s for answer in computed),
        "host_ttft_ms": 1000 * statistics.median(answer.ttft_s for answer in host_answers),
        "disk_ttft_ms": 1000 * statistics.median(answer.ttft_s for answer in after),
        "ttft_s": {
            name: [answer.ttft_s for answer in answers]
            for name, answers in (("computed", computed), ("host", host_answers), ("disk", after))
        },
    }


def _beside(
    system: System,
    client: httpx.Client,
    prompts: Sequence[list[int]],
    out_dir: Path,
    turns: int,
    streams: str,
    say: Say,
) -> dict[str, Any]:
    """Streams beside prompts that are loaded, over streams beside one that stays in the engine's own cache."""
    p99: dict[str, list[float]] = {"cached": [], "loaded": []}
    for turn in range(2 * turns - 1):
        for what, of in (("cached", prompts[:1]), ("loaded", prompts)):
            say(f"streams, {what}, turn {turn + 1}")
            ask(client, system.model, of[0])
            with _coming(system, of):
                arguments = [*_STREAMS, "--seed", f"{turn}", "--requests", streams]
                line = run_load(system, arguments, out_dir / f"{what}-{turn}.log")
            p99[what].append(float(line["itl_ms"]["p99"]))
    return {
        "p99_itl_ratio": statistics.median(b / a for a, b in zip(p99["cached"], p99["loaded"], strict=True)),
        "p99_itl_cached_ms": statistics.median(p99["cached"]),
        "p99_itl_loaded_ms": statistics.median(p99["loaded"]),
        "itl_turns": [*zip(p99["cached"], p99["loaded"], strict=True)],
    }


@contextmanager
def _coming(system: System, prompts: Sequence[list[int]]) -> Iterator[None]:
    """One after the other, meanwhile. Raises: Unavailable."""
    over, failures = threading.Event(), list[Exception]()

    def send() -> None:
        try:
            with httpx.Client(base_url=system.url, timeout=120) as client:
                for ids in cycle(prompts):
                    if over.wait(_EVERY_S):
                        return
                    answer = ask(client, system.model, ids, 1)
                    if answer.cached_tokens < _LEAST:
                        raise Unavailable(f"{answer.cached_tokens} tokens of a prompt were cached, and not {_LEAST}")
        except Unavailable as exc:
            failures.append(exc)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if failures:
        raise failures[0]
