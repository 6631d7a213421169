"""Tokens a second behind the whole system, compared with the engine's own server: SGLang; vLLM with three adapters."""

import json
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from ops.bench.disagg.play import Cpu
from ops.bench.engines import pools
from ops.bench.engines.own_time import own_times
from ops.bench.engines.streams import Answer, chats, stream_all, tokens_per_s
from ops.bench.load import System
from ops.bench.parts import Say
from ops.bench.processes import Unavailable
from ops.bench.size import Size
from ops.bench.systems import fleet, sglang_server, vllm_server
from tests.lora import make_adapter

_STREAMS = 8
_TOKENS, _QUICK_TOKENS = 48, 32  # of each answer
_PAIRS, _QUICK_PAIRS = 10, 6
_ROUNDS, _QUICK_ROUNDS = 2, 1  # answers of each stream in a run
_POOL = "decode-pool-a"
_ADAPTERS = ("first", "second", "third")
_LORA = {"enable_lora": True, "max_loras": 3, "max_cpu_loras": 3, "max_lora_rank": 8}
_LAYERS = 30  # of SmolLM2-135M


@dataclass(frozen=True)
class Sides:
    """Both are up, and one at a time is asked."""

    ours: System
    theirs: System
    models: Sequence[str]  # asked in turn


def sglang_throughput(out_dir: Path, size: Size, say: Say) -> dict[str, Any]:
    """Raises: Unavailable."""
    size.needs("real engines")
    with ExitStack() as up:
        say("starting SGLang's own server")
        own = sglang_server(out_dir / "own", pools.model_dir(), pools.sglang_arguments(), pools.ONE_THREAD)
        theirs = up.enter_context(own)
        say("starting the system with SGLang")
        ours = up.enter_context(
            fleet(
                out_dir / "xylem", {_POOL: pools.sglang_pool(pools.model_dir())}, {_POOL: 1}, more_env=pools.ONE_THREAD
            )
        )
        figures, answers = _compared("sglang", Sides(ours, theirs, [pools.MODEL]), out_dir, size, say)
        return figures | own_times(ours.url, answers, pools.MODEL, size, say)


def lora_throughput(out_dir: Path, size: Size, say: Say) -> dict[str, Any]:
    """Raises: Unavailable."""
    size.needs("real engines")
    sources = (out_dir / "adapters").resolve()
    paths = {name: str(make_adapter(sources / name, seed, layers=_LAYERS)) for seed, name in enumerate(_ADAPTERS)}
    cores = pools.own_cores()
    with ExitStack() as up:
        say("starting vLLM's own server")
        modules = [f"{name}={path}" for name, path in paths.items()]
        arguments = pools.vllm_arguments(**_LORA, lora_modules=modules)
        theirs = up.enter_context(vllm_server(out_dir / "own", pools.model_dir(), arguments, cores))
        say("starting the system with vLLM")
        env = cores | {"XYLEM_LORA_SOURCES": str(sources)}
        ours = up.enter_context(
            fleet(out_dir / "xylem", {_POOL: pools.vllm_pool(pools.model_dir(), **_LORA)}, {_POOL: 1}, more_env=env)
        )
        for name, path in paths.items():
            body = {"name": name, "source": path, "model": pools.MODEL}
            response = httpx.post(f"{ours.url}/admin/loras", json=body, timeout=90)
            if not (response.is_success and response.json()["workers"]):
                raise Unavailable(f"the adapter {name} was not added: {response.text[:300]}")
        figures, _ = _compared("lora", Sides(ours, theirs, _ADAPTERS), out_dir, size, say)
        return figures | {"lora_overhead_ratio": figures["lora_throughput_ratio"]}


def _compared(key: str, sides: Sides, out_dir: Path, size: Size, say: Say) -> tuple[dict[str, Any], list[Answer]]:
    """Medians over pairs of runs, and our answers. Raises: Unavailable."""
    rows: list[dict[str, float]] = []
    answers: list[Answer] = []
    pairs, count = size.of(_PAIRS, _QUICK_PAIRS, 1), size.of(_ROUNDS, _QUICK_ROUNDS, 1)
    tokens = size.of(_TOKENS, _QUICK_TOKENS, _QUICK_TOKENS)  # a few may be no text: adapters are random
    for pair in range(-1, pairs):  # the first warms up
        say(f"{key}: pair {pair + 1} of {pairs}")
        bodies = chats(sides.models, count * _STREAMS, tokens, seed=pair)
        cpu = Cpu({**sides.ours.watch, "theirs": sides.theirs.watch["api"]})
        speed: dict[str, float] = {}
        for side in ("ours", "theirs") if pair % 2 else ("theirs", "ours"):
            new_answers = stream_all(getattr(sides, side).url, bodies, _STREAMS)
            speed[side] = tokens_per_s(new_answers)
            answers += new_answers if side == "ours" and pair >= 0 else []
        cores = cpu.cores()
        other = cores["machine"] - sum(
            busy_cores for part, busy_cores in cores.items() if part not in ("machine", "stolen")
        )
        row = speed | {"ratio": speed["ours"] / speed["theirs"], "other_cores": other, "stolen_cores": cores["stolen"]}
        with (out_dir / "pairs.jsonl").open("a") as raw:
            raw.write(json.dumps({"pair": pair, **row}) + "\n")
        if pair >= 0:
            rows.append(row)
    of = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    return {
        f"{key}_pairs": rows,
        f"{key}_throughput_ratio": of["ratio"],
        f"{key}_tokens_per_s": of["ours"],
        f"{key}_own_server_tokens_per_s": of["theirs"],
        f"{key}_other_cores": of["other_cores"],
    }, answers
