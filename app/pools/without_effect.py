"""Keys that are set and change nothing: a file that has them is taken, and its owner told."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from app.endpoints import EndpointName
from app.pools.schema import Pool, PoolsFile

_CHATS: frozenset[EndpointName] = frozenset({"chat", "responses", "messages"})


def _unless_text(pool: Pool, _file: PoolsFile) -> str:
    return "" if pool.task == "generate" else f"task: {pool.task}"


def _unless_chats(pool: Pool, file: PoolsFile) -> str:
    if pool.task == "generate" and pool.endpoints is not None and _CHATS.isdisjoint(pool.endpoints):
        return f"endpoints: [{', '.join(pool.endpoints)}]"
    return _unless_text(pool, file)


def _unless_completions(pool: Pool, file: PoolsFile) -> str:
    if pool.task == "generate" and pool.endpoints is not None and "completions" not in pool.endpoints:
        return f"endpoints: [{', '.join(pool.endpoints)}]"
    return _unless_text(pool, file)


def _if_it_paints(pool: Pool, _file: PoolsFile) -> str:
    return "task: image" if pool.task == "image" else ""


def _unless_it_paints(pool: Pool, _file: PoolsFile) -> str:
    return "" if pool.task == "image" else f"task: {pool.task}"


def _unless_videos(pool: Pool, _file: PoolsFile) -> str:
    return "" if pool.task != "image" or pool.painting.videos else "painting.videos: false"


def _if_videos(pool: Pool, _file: PoolsFile) -> str:
    return "painting.videos: true" if pool.painting.videos else ""


def _unless_by_kv(pool: Pool, _file: PoolsFile) -> str:
    return "" if pool.routing.policy == "kv" else f"routing.policy: {pool.routing.policy}"


def _unless_computed_apart(pool: Pool, _file: PoolsFile) -> str:
    return "" if pool.role == "prefill" or pool.peers else f"role: {pool.role}"


def _unless_warmed(pool: Pool, _file: PoolsFile) -> str:
    return "" if pool.role == "prefill" or pool.task == "transcribe" else f"role: {pool.role}, task: {pool.task}"


def _unless_encoded_apart(pool: Pool, file: PoolsFile) -> str:
    encoders = (other for other in file.pools.values() if other.role == "encode" and other.model == pool.model)
    return "" if any(encoders) else "no pool of role encode"


def _unless_on_disk(pool: Pool, _file: PoolsFile) -> str:
    return "" if pool.tiers is None or pool.tiers.disk else "no tiers.disk"


# Keys of a pool, and what they change nothing beside.
RULES: Mapping[str, Callable[[Pool, PoolsFile], str]] = {
    "chat_template": _unless_chats,
    "reasoning": _unless_chats,
    "dialect": _unless_chats,
    "reasoning_field": _unless_chats,
    "generation_config": _unless_text,
    "prompt_embeds": _unless_completions,
    "embeddings": _unless_encoded_apart,
    "block_size": _if_it_paints,
    "max_model_len": _if_it_paints,
    "tokenizer_mode": _if_it_paints,
    "disagg": _unless_computed_apart,
    "warm_up": _unless_warmed,
    "routing.prefill_weight": _unless_by_kv,
    "routing.predicted_ttl_s": _unless_by_kv,
    "tiers.disk_look_s": _unless_on_disk,
    "painting": _unless_it_paints,
    "painting.fps": _unless_videos,
    "painting.seconds": _unless_videos,
    "painting.max_seconds": _unless_videos,
    "painting.quality_steps": _if_videos,
}
_OFF = ("embeddings", "prompt_embeds")  # false changes nothing anywhere, and is no mistake


def without_effect(file: PoolsFile) -> dict[str, str]:
    """A sentence for each key that changes nothing, by the key with all above it."""
    sentences = {
        f"pools.{name}.{key}": f"has no effect beside {beside}"
        for name, pool in file.pools.items()
        for key, beside in _of_pool(pool, file)
    }
    if file.planner.gpus is not None and not file.planner.objectives:
        sentences["planner.gpus"] = "has no effect without planner.objectives"
    return sentences


def _of_pool(pool: Pool, file: PoolsFile) -> Iterator[tuple[str, str]]:
    idle: list[str] = []
    for key, beside in RULES.items():
        above = key.partition(".")[0]
        if above not in idle and _is_set(pool, key) and (what := beside(pool, file)):
            idle.append(key)
            yield key, what


def _is_set(pool: Pool, key: str) -> bool:
    part: Any = pool
    for name in key.split("."):
        if not (isinstance(part, BaseModel) and name in part.model_fields_set):
            return False
        part = getattr(part, name)
    return part is not False or key not in _OFF
