"""The time to the first token on two workers with hybrid models and little room, over that of an older commit.

All four workers are up, and one side is asked at a time, in turns: both get the same prompts in the same order.
What the engine's own evictions leave to any placement is measured, too: an engine with a worker's room, and half of the
system prompts.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

import httpx
from msgspec import Struct
from msgspec.structs import asdict

from ops.bench.engines.pools import SHARED_CORES
from ops.bench.events import cached_of, events_async
from ops.bench.load import System
from ops.bench.models.one_engine import answer, started, words
from ops.bench.older import tree
from ops.bench.parts import Say
from ops.bench.size import Size
from ops.bench.systems import fleet
from ops.models.architectures import written
from tests.forkserver import forks_of
from tests.shallow import shallow_model

_POOL = "decode-pool-a"
BEFORE = "0023de94"  # the last commit whose index knows nothing of hybrid models
# Larger than in the matrix, so that a prompt takes a while.
_SIZES = {"hidden_size": 512, "num_attention_heads": 8, "head_dim": 64}
_MODELS: dict[str, dict[str, Any]] = {
    "gemma3": {"layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3, "intermediate_size": 1536},
    "gpt_oss": {"layer_types": ["sliding_attention", "full_attention"] * 11, "intermediate_size": 1024},
}
_WINDOWS = {"gemma3": 5, "gpt_oss": 1}  # groups of layers with a window, beside one that sees all
_BLOCK, _WINDOW_BLOCKS = 32, 4
_SHARED, _OWN, _ANSWER = 1600, 40, 2  # tokens: of a system prompt, behind it, and of an answer
_ROOM = 7 / 12  # of a worker's cache, for so many of the system prompts
_LEAST = 600  # blocks, with which such an engine starts
_ROOM_FOR_ALL = 8000  # blocks
_AT_ONCE = 2  # requests: as many as workers
_TURN = 10  # requests of one side, before it is the other's
_SLOW_S = 1.0  # what a prompt has to take at least that isn't cached


class Conversation(Struct, frozen=True):
    system: int  # the number of its system prompt
    prompt: list[int]


class Answered(Struct, frozen=True):
    ttft_s: float
    tokens: int  # of the prompt
    cached: int


def hybrid(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Measures each model, and returns each figure of the model where it is worse. Raises: Unavailable."""
    size.needs("real vLLM")
    systems, requests = size.of((20, 200), (8, 64), (2, 4))
    with tree(directory / "tree", BEFORE) as older:
        rows = [
            _measured(model, directory / model, older, _conversations(systems, requests), systems, say)
            for model in size.of([*_MODELS], ["gemma3"], ["gemma3"])
        ]
    fast = [f"an uncached prompt of {row['model']} takes {row['uncached_s']:.2f} s here, which is too little"
            for row in rows if row["uncached_s"] < _SLOW_S and not size.smallest]  # fmt: skip
    return {
        "hybrid_ttft_ratio": max(row["ttft_ratio"] for row in rows),
        "hybrid_cached_share": min(row["of_one_engine"] for row in rows),
        "hybrid_cached_share_bound": min(row["bound"] / row["one_engine"] for row in rows),
        "hybrid": rows,
        "missing": dict.fromkeys(("hybrid_ttft_ratio",) if fast else (), "; ".join(fast)),
    }


def _measured(
    model: str, directory: Path, older: Path, conversations: list[Conversation], systems: int, say: Say
) -> dict[str, Any]:
    directory.mkdir()
    prompts = [one.prompt for one in conversations]
    blocks = _blocks(model, systems)
    folder = _written(model, directory / "model")
    say(f"hybrid: {model}, one engine with room for all")
    small = directory / "small"
    small.mkdir()
    written(model, small, shallow_model())
    whole = asyncio.run(_of_engines(small, [prompts], _ROOM_FOR_ALL))
    say(f"hybrid: {model}, an engine with a worker's room for either half")
    halves = [[one.prompt for one in conversations if one.system % 2 == half] for half in (0, 1)]
    bound = asyncio.run(_of_engines(small, halves, blocks))
    say(f"hybrid: {model}, loading two workers of either commit")
    started_with = {_POOL: _pool(model, folder, blocks)}, {_POOL: _AT_ONCE}
    with (
        fleet(directory / "old", *started_with, more_env=SHARED_CORES, root=older) as old,
        fleet(directory / "new", *started_with, more_env=SHARED_CORES) as new,
    ):
        progress: Callable[[int], None] = lambda n: say(f"hybrid: {model}, {n} of {len(prompts)} prompts")  # noqa: E731 (short)
        answers_by_side = asyncio.run(_asked({"before": old, "after": new}, prompts, progress))
    (directory / "answers.json").write_text(
        json.dumps({side: [*map(asdict, all_)] for side, all_ in answers_by_side.items()})
    )
    ttft = {side: mean(one.ttft_s for one in answers) for side, answers in answers_by_side.items()}
    shares = {side: _share(answers) for side, answers in answers_by_side.items()}
    uncached_times = [one.ttft_s for answers in answers_by_side.values() for one in answers if not one.cached]
    return {
        "model": model, "ttft_s": ttft, "ttft_ratio": ttft["after"] / ttft["before"], "shares": shares,
        "one_engine": whole, "of_one_engine": shares["after"] / whole, "bound": bound,
        "uncached_s": mean(uncached_times),
    }  # fmt: skip


def _written(model: str, folder: Path) -> Path:
    folder.mkdir()
    written(model, folder, shallow_model())
    config = folder / "config.json"
    layers = {"num_hidden_layers": len(_MODELS[model]["layer_types"])}
    config.write_text(json.dumps(json.loads(config.read_text()) | _SIZES | _MODELS[model] | layers))
    return folder


def _blocks(model: str, systems: int) -> int:
    """Blocks for `_ROOM` of the system prompts, and for a prompt that is being computed."""
    prompt = -(-(_SHARED + _OWN + _ANSWER) // _BLOCK)
    resumable = _SHARED // _BLOCK + _WINDOWS[model] * _WINDOW_BLOCKS
    return max(_LEAST, round(systems * _ROOM) * resumable + (1 + _WINDOWS[model]) * prompt)


def _pool(model: str, folder: Path, blocks: int) -> dict[str, Any]:
    return {
        "model": model, "engine": "vllm", "path": str(folder), "block_size": _BLOCK, "max_running": 4,
        "max_model_len": 2048,
        "args": {
            "load_format": "dummy", "enforce_eager": True, "kv_cache_memory_bytes": 2**29,
            "num_gpu_blocks_override": blocks,
        },
    }  # fmt: skip


def _conversations(systems: int, requests: int) -> list[Conversation]:
    random = Random(5)
    system_prompts = [words(random, _SHARED) for _ in range(systems)]
    numbers = [random.randrange(systems) for _ in range(requests)]
    return [Conversation(number, system_prompts[number] + words(random, _OWN)) for number in numbers]


async def _of_engines(folder: Path, prompts_by_engine: list[list[list[int]]], blocks: int) -> float:
    """The share that is cached in small engines with the same kinds of layers, each asked its prompts in order."""
    cached_tokens = 0
    with forks_of("vllm"):
        for prompts in prompts_by_engine:
            async with started(folder, blocks, 2048) as engine:
                cached_tokens += sum([(await answer(engine, prompt, _ANSWER))[1] for prompt in prompts])
    return cached_tokens / sum(len(prompt) for prompts in prompts_by_engine for prompt in prompts)


async def _asked(
    sides: Mapping[str, System], prompts: list[list[int]], told: Callable[[int], None]
) -> dict[str, list[Answered]]:
    answers: dict[str, list[Answered]] = {side: [] for side in sides}
    async with httpx.AsyncClient(timeout=600) as http:
        for first in range(0, len(prompts), _TURN):
            told(first)
            for side, system in sides.items():
                answers[side] += await _turn(http, system, prompts[first : first + _TURN])
    return answers


async def _turn(http: httpx.AsyncClient, system: System, prompts: list[list[int]]) -> list[Answered]:
    queue, answers = iter(prompts), list[Answered]()

    async def client() -> None:
        for prompt in queue:
            answers.append(await _one(http, system, prompt))

    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(client())
    return answers


async def _one(http: httpx.AsyncClient, system: System, prompt: list[int]) -> Answered:
    body = {
        "model": system.model, "prompt": prompt, "max_tokens": _ANSWER, "temperature": 0, "ignore_eos": True,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    began, first, cached_tokens = time.perf_counter(), 0.0, 0
    async with http.stream("POST", f"{system.url}/v1/completions", json=body) as response:
        async for event in events_async(response):
            first = first or time.perf_counter()
            if usage := event.get("usage"):
                cached_tokens = cached_of(usage)
    return Answered(first - began, len(prompt), cached_tokens)


def _share(answers: list[Answered]) -> float:
    return sum(one.cached for one in answers) / sum(one.tokens for one in answers)
