"""Carries out admins' changes of pinned prefixes: writes one down, and waits until the workers have done it."""

import asyncio
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from app.api.operations.prefix_standing import PrefixStanding, is_warm, standing
from app.api.state import ApiState
from app.dispatch.models.models import Model, find_model
from app.errors import PrefixNotFound, RequestError
from app.ids import PoolId, PrefixId, new_prefix_id
from app.intervals import COMMANDS_TTL_S
from app.messages.commands import LookAtPrefixes
from app.messages.wanted import Prefix, decode_prefix
from app.messages.wire import encode
from app.openai.prefix import NewPrefix
from app.routing.prefixes import room
from app.store import clock
from app.telemetry import logger

log = logger(__name__)

_MOST = 100  # of a pool: its workers compute each of them every few seconds
_ONCE_S = 60.0  # after which what is computed once has no chance any more
_FORGET_S = 300.0  # in which whoever looks after the store has to see that a prefix was dropped
_LOOK_S = 0.1


async def pinned(state: ApiState) -> list[tuple[Prefix, list[PoolId]]]:
    """Prefixes that are kept, the oldest first, with their pools. Raises: RedisError."""
    entries: dict[PrefixId, tuple[Prefix, list[PoolId]]] = {}
    for pool in state.pools:
        for prefix in await _read(state, pool):
            if _is_kept(prefix):
                entries.setdefault(prefix.id, (prefix, []))[1].append(pool)
    return sorted(entries.values(), key=lambda one: (one[0].created, one[0].id))


async def pin(state: ApiState, body: NewPrefix, tokens: list[int]) -> tuple[Prefix, dict[PoolId, PrefixStanding]]:
    """Returns when the caches have it, or after `wait_s`. Raises: RequestError, StoreDown, RedisError."""
    model = find_model(state.models, body.model)
    pools = await _pools(state, model, body, tokens)
    now = clock.now()
    prefix = Prefix(
        new_prefix_id(),
        model.name,
        tokens,
        created=now,
        until=now + (body.pin_s or _ONCE_S),
        copies=body.copies,
        cache_salt=body.cache_salt,
        adapter=model.name if model.adapter else None,
        once=not body.pin_s,
    )
    for pool in pools:
        await _write(state, pool, [prefix])
    log.info("prefix_pinned", prefix=prefix.id, model=prefix.model, pools=pools, tokens=len(tokens))
    await _tell(state, pools)
    end = time.monotonic() + body.wait_s
    while is_warm(standings := await standing(state, prefix, pools)) is False and time.monotonic() < end:  # noqa: ASYNC110 (Redis has no event for it)
        await asyncio.sleep(_LOOK_S)
    return prefix, standings


async def drop(state: ApiState, id_: PrefixId) -> None:
    """Raises: PrefixNotFound, RedisError."""
    prefix, pools = next((one for one in await pinned(state) if one[0].id == id_), (None, []))
    if prefix is None:
        raise PrefixNotFound
    # Under another id: workers read each record once.
    tombstone = replace(prefix, id=new_prefix_id(), until=clock.now() + _FORGET_S, dropped=True)
    for pool in pools:
        tiers = state.pools[pool].tiers
        await _write(state, pool, [tombstone] if tiers is not None and tiers.disk is not None else [], without=id_)
    log.info("prefix_dropped", prefix=id_)
    await _tell(state, pools)


async def _pools(state: ApiState, model: Model, body: NewPrefix, tokens: Sequence[int]) -> list[PoolId]:
    """Pools that are to have the prefix. Raises: RequestError, StoreDown, RedisError."""
    able = [pool for pool in (*model.pools, *model.prefill_pools) if state.pools[pool].role in ("both", "prefill")]
    if strange := [pool for pool in body.pools if pool not in able]:
        raise RequestError(f"'{strange[0][:100]}' is no pool that computes prompts of {model.name}.", param="pools")
    pools = [pool for pool in able if not body.pools or pool in body.pools]
    if not pools:
        raise RequestError(f"No pool computes prompts of {model.name}.", param="model")
    for pool in pools:
        workers = [lease.worker for lease in await state.fleet.live([pool])]
        grid = state.fleet.grids[pool]
        blocks = len(tokens) // (size := grid.step) * (size // grid.block_size)
        if not blocks:
            raise RequestError(
                f"'{body.param}' has {len(tokens)} tokens, and a block of {pool} has {size}: there is nothing to keep.",
                param=body.param,
            )
        if workers and not any(worker.prefixes for worker in workers):
            raise RequestError(f"The workers of {pool} compute no prompts by themselves.", param="pools")
        if any(blocks > room(worker) for worker in workers):
            raise RequestError(
                f"'{body.param}' fills {blocks} blocks, more than half of a cache of {pool}.", param=body.param
            )
        if sum(map(_is_kept, await _read(state, pool))) >= _MOST:
            raise RequestError(f"{pool} has {_MOST} prefixes, and may not have more.", param="pools")
    return pools


def _is_kept(prefix: Prefix) -> bool:
    return _lives(prefix) and not prefix.dropped


def _lives(prefix: Prefix) -> bool:
    return prefix.until > clock.now()


async def _read(state: ApiState, pool: PoolId) -> list[Prefix]:
    """The pool's prefixes, with those whose time is over."""
    raws: dict[bytes, bytes] = await cast(Any, state.redis.hgetall(state.keys.prefixes(pool)))
    prefixes = []
    for id_, raw in raws.items():
        try:
            prefixes.append(decode_prefix(raw))
        except msgspec.DecodeError as exc:
            log.error("prefix_not_understood", prefix=id_.decode(), error=str(exc))
    return prefixes


async def _write(state: ApiState, pool: PoolId, new: Iterable[Prefix], without: PrefixId | None = None) -> None:
    """Removes those whose time is over."""
    key = state.keys.prefixes(pool)
    old_ids = [prefix.id for prefix in await _read(state, pool) if not _lives(prefix) or prefix.id == without]
    pipe = state.redis.pipeline(transaction=True)
    if old_ids:
        pipe.hdel(key, *old_ids)
    for prefix in new:
        pipe.hset(key, prefix.id, encode(prefix))
        pipe.expireat(key, math.ceil(prefix.until), nx=True)
        pipe.expireat(key, math.ceil(prefix.until), gt=True)
    await pipe.execute()


async def _tell(state: ApiState, pools: Sequence[PoolId]) -> None:
    """Workers; who doesn't hear it looks itself, every few seconds."""
    pipe = state.redis.pipeline(transaction=False)
    for lease in await state.fleet.live(pools):
        if lease.worker.prefixes:  # an older one would not understand
            key = state.keys.commands(lease.worker.id)
            pipe.rpush(key, encode(LookAtPrefixes()))
            pipe.expire(key, COMMANDS_TTL_S)
    await pipe.execute()
