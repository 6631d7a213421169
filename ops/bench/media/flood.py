"""Text streams beside a flood of pictures, on real vLLM: an encoder and a worker that answers, over two that do both.

Each engine has a core of its own, so both sides have as many. Random weights: a small language model, and eyes for
which a picture is the work of many of its steps.
"""

import json
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from app.cli.stack import cpu_shares, usable_cores
from ops.bench.load import Line, System, run_load
from ops.bench.media.jpeg import picture
from ops.bench.media.worker_metrics import told
from ops.bench.parts import Say
from ops.bench.processes import Unavailable
from ops.bench.size import Size
from ops.bench.systems import fleet
from tests.vlm import random_vlm

_SIDE = 224  # pixels
_LEAST_STEPS = 5  # of an answer, that encoding a picture has to take
_SHARE = 0.7  # of the time that one core encodes: so many pictures come
_LEAST_APART = 0.9  # of the pictures
_AT_ONCE = 16  # pictures
_METRIC = "xylem_worker_pictures_fetched"
_LOAD = [
    "--stream", "--concurrency", "4", "--max-tokens", "150", "--prompt", "unique", "--prompt-words",
    "10", "--extra-body", json.dumps({"ignore_eos": True, "temperature": 0}), "--max-seconds", "20",
]  # fmt: skip


@dataclass(frozen=True)
class Turn:
    """One run of the text streams on each side: time between two tokens, p99, ms."""

    apart: float
    together: float


def measured(out_dir: Path, size: Size, say: Say) -> dict[str, Any]:
    """`itl_p99_ratio`, its times, and what a picture costs. Raises: Unavailable."""
    size.needs("real vLLM", "vllm")
    say("making a model with large eyes")
    pools = _pools(random_vlm("idefics3", size="eyes"))
    say("loading the system")
    with fleet(out_dir / "xylem", pools, dict.fromkeys(pools, 1)) as system, Pictures(system.url) as pictures:
        apart, together = replace(system, model="apart"), replace(system, model="together")
        for side in (apart, together):  # compiles, and connects the workers
            _stream(side, out_dir / f"{side.model}-warm.log", 100, 4)
            for _ in range(8):
                pictures.see(side.model)
        say("what a picture costs")
        idle = _stream(together, out_dir / "idle.log", 101, 8)
        encode_s = statistics.median(pictures.see("together") - pictures.say("together") for _ in range(9))
        steps = 1000 * encode_s / idle["itl_ms"]["p50"]
        if steps < _LEAST_STEPS:
            raise Unavailable(f"encoding a picture took {steps:.1f} steps, fewer than {_LEAST_STEPS}")
        turns, took = list[Turn](), dict[str, list[float]](apart=[], together=[])
        before = pictures.fetched()
        for turn in range(size.of(9, 3, 1)):
            p99 = {}
            for side in (apart, together):
                say(f"turn {turn + 1}, {side.model}")
                with pictures.flood(side.model, encode_s / _SHARE, took[side.model]):
                    line = _stream(side, out_dir / f"{side.model}-{turn}.log", turn, size.of(12, 8, 4))
                p99[side.model] = float(line["itl_ms"]["p99"])
            turns.append(Turn(**p99))
        fetch_count = pictures.fetched() - before
    if fetch_count < _LEAST_APART * len(took["apart"]):
        raise Unavailable(f"only {fetch_count:.0f} of {len(took['apart'])} pictures were encoded apart")
    return figures(turns) | {
        "flood_steps": steps,
        "flood_encode_ms": 1000 * encode_s,
        "itl_p99_idle_ms": float(idle["itl_ms"]["p99"]),
        "flood_apart_picture_ms": 1000 * statistics.median(took["apart"]),
        "flood_together_picture_ms": 1000 * statistics.median(took["together"]),
        "flood_pictures": {side: len(times) for side, times in took.items()},
    }


def figures(turns: Sequence[Turn]) -> dict[str, Any]:
    """Medians; the ratio is that of the turns' ratios."""
    return {
        "itl_p99_ratio": statistics.median(turn.apart / turn.together for turn in turns),
        "itl_p99_apart_ms": statistics.median(turn.apart for turn in turns),
        "itl_p99_together_ms": statistics.median(turn.together for turn in turns),
        "flood_turns": [[turn.apart, turn.together] for turn in turns],
    }


class Pictures:
    """Asks about pictures, each of them a new one."""

    def __init__(self, url: str) -> None:
        self._client, self._url = httpx.Client(timeout=120), url
        self._numbers = count()

    def __enter__(self) -> "Pictures":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def see(self, model: str) -> float:
        """Seconds to a token about a new picture. Raises: Unavailable."""
        return self._ask(model, [picture(next(self._numbers), _SIDE), {"type": "text", "text": "What is this?"}])

    def say(self, model: str) -> float:
        """Seconds to a token about a text. Raises: Unavailable."""
        return self._ask(model, [{"type": "text", "text": f"{next(self._numbers)}: what is this?"}])

    @contextmanager
    def flood(self, model: str, every_s: float, took: list[float]) -> Iterator[None]:
        """Pictures come meanwhile, whether or not earlier ones are answered; `took` gets their seconds.

        Raises: Unavailable.
        """
        over = threading.Event()
        with ThreadPoolExecutor(_AT_ONCE + 1) as pool:

            def send() -> list[Future[float]]:
                futures = [pool.submit(self.see, model)]
                while not over.wait(every_s):
                    futures.append(pool.submit(self.see, model))
                return futures

            sending = pool.submit(send)
            try:
                yield
            finally:
                over.set()
            took += [one.result() for one in sending.result()]

    def fetched(self) -> float:
        """Pictures that workers had from an encoder, so far."""
        return told(self._client, self._url, _METRIC)

    def _ask(self, model: str, parts: list[dict[str, Any]]) -> float:
        body = {"model": model, "messages": [{"role": "user", "content": parts}], "max_tokens": 1}
        began = time.perf_counter()
        try:
            self._client.post(f"{self._url}/v1/chat/completions", json=body).raise_for_status()
        except httpx.HTTPError as exc:
            raise Unavailable(f"a question got no answer: {exc}") from exc
        return time.perf_counter() - began


def _pools(model: Path) -> dict[str, dict[str, Any]]:
    """Each worker's engine has one core: apart, one encodes and one answers; together, both do both."""
    cores = cpu_shares(usable_cores(), 2)

    def pool(name: str, core: str, **more: Any) -> dict[str, Any]:
        args = {
            "kv_cache_memory_bytes": 2**28, "limit_mm_per_prompt": {"image": 1},
            "env": {"VLLM_CPU_OMP_THREADS_BIND": core},
        }  # fmt: skip
        own = {"model": name, "engine": "vllm", "path": str(model), "max_model_len": 1024, "max_running": 32}
        return own | {"args": args} | more

    return {
        "answers": pool("apart", cores[0]),
        "encodes": pool("apart", cores[1], role="encode"),
        "both-0": pool("together", cores[0]),
        "both-1": pool("together", cores[1]),
    }


def _stream(system: System, log: Path, seed: int, requests: int) -> Line:
    return run_load(system, [*_LOAD, "--seed", str(seed), "--requests", str(requests)], log)
