"""The share that a hybrid model's engine finds in its cache, by how much of windows and states it is told to keep."""

import asyncio
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from app.engines.base import Engine
from ops.bench.models.one_engine import answer, started, words
from ops.bench.parts import Say
from ops.bench.size import Size
from ops.models.architectures import written
from tests.forkserver import forks_of
from tests.shallow import shallow_model

# Blocks: room for all, and for some. Windows with layers that see all, states with such, windows alone.
_ROOM = {"gemma3": (1200, 420), "lfm2": (900, 180), "mistral": (400, 100)}
_SETTINGS: tuple[int | None, ...] = (0, 256, None)  # of `prefix_cache_retention_interval`
_TURNS, _ANSWER = 5, 32  # of a conversation; tokens
_PROMPTS = 60


class Kept(Struct, frozen=True):
    """Shares of the prompts' tokens that were cached."""

    model: str
    setting: int | None
    blocks: int  # of the cache
    turns: float  # conversations in turn, each prompt with the answers before it
    shared: float  # prompts with one of six beginnings


def retention(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Shares by model, setting and room. Raises: Unavailable, XylemError."""
    size.needs("real vLLM")
    prompts, models = size.of(_PROMPTS, _PROMPTS, 4), size.of([*_ROOM], [*_ROOM], ["gemma3"])
    rows = list[Kept]()
    with forks_of("vllm"):
        for model in models:
            folder = directory / model
            folder.mkdir(parents=True)
            written(model, folder, shallow_model())
            for setting in size.of(_SETTINGS, _SETTINGS, (0,)):
                for blocks in _ROOM[model]:
                    say(f"retention: {model}, {setting}, {blocks} blocks")
                    rows.append(asyncio.run(_kept(model, folder, setting, blocks, prompts)))
    return {"retention": [asdict(row) for row in rows]}


async def _kept(model: str, folder: Path, setting: int | None, blocks: int, prompts: int) -> Kept:
    async with started(folder, blocks, 1024, prefix_cache_retention_interval=setting) as engine:
        return Kept(model, setting, blocks, await _conversations(engine, prompts), await _beginnings(engine, prompts))


async def _conversations(engine: Engine, prompts: int) -> float:
    """All take turns."""
    random, cached_tokens, prompt_tokens = Random(3), 0, 0
    talks = [_some(random, 200) for _ in range(max(1, prompts // _TURNS))]
    for number in range(prompts):
        talk = talks[number % len(talks)]
        talk += _some(random, 60)
        answer_tokens, hit_tokens = await answer(engine, talk, _ANSWER)
        cached_tokens, prompt_tokens = cached_tokens + hit_tokens, prompt_tokens + len(talk)
        talk += answer_tokens
    return cached_tokens / prompt_tokens


async def _beginnings(engine: Engine, prompts: int) -> float:
    random, cached_tokens, prompt_tokens = Random(4), 0, 0
    roots = [_some(random, 500) for _ in range(6)]
    for _ in range(prompts):
        prompt = random.choice(roots) + _some(random, 60)
        _tokens, hit_tokens = await answer(engine, prompt, 4)
        cached_tokens, prompt_tokens = cached_tokens + hit_tokens, prompt_tokens + len(prompt)
    return cached_tokens / prompt_tokens


def _some(random: Random, length: int) -> list[int]:
    return words(random, length + random.randrange(length // 4))
