"""Finds the caches of a fleet that have a pinned prefix, by the prefix index."""

from collections.abc import Sequence

from msgspec import Struct

from app.api.state import ApiState
from app.ids import PoolId
from app.kv.blocks import point_hashes
from app.messages.lease import Grid, Lease
from app.messages.wanted import Prefix
from app.routing.prefixes import keepers, prompt


class PrefixStanding(Struct, frozen=True):
    """A prefix's standing in one pool. Places: KV caches, of which each data-parallel rank of a worker has one."""

    blocks: int  # that it fills
    places: int | None  # that have all of it; None: some engine reports no KV events
    wanted: int  # that are to have it
    warm: bool | None  # whether these have it; None: as above


async def standing(state: ApiState, prefix: Prefix, pools: Sequence[PoolId]) -> dict[PoolId, PrefixStanding]:
    """Raises: StoreDown."""
    return {pool: await _in_pool(state, prefix, pool) for pool in pools}


def is_warm(standings: dict[PoolId, PrefixStanding]) -> bool | None:
    """Whether all places that are to have it have it, as far as is known; None: nothing is."""
    answers = [one.warm for one in standings.values() if one.warm is not None]
    return all(answers) if answers else None


async def _in_pool(state: ApiState, prefix: Prefix, pool: PoolId) -> PrefixStanding:
    leases = await state.fleet.live([pool])
    grid = state.fleet.grids[pool]
    targets = {(lease.worker.id, rank) for lease in keepers(prefix, leases) for rank in range(lease.worker.ranks)}
    points = len(prefix.tokens) // grid.step
    blocks = points * grid.step // grid.block_size
    if not all(lease.worker.kv_events for lease in leases):
        return PrefixStanding(blocks, None, len(targets), None)
    having = await _having(state, prefix, pool, leases, grid)
    return PrefixStanding(blocks, len(having), len(targets), bool(targets and points) and targets <= having)


async def _having(
    state: ApiState, prefix: Prefix, pool: PoolId, leases: Sequence[Lease], grid: Grid
) -> set[tuple[str, int]]:
    """The places that have all of it: each with the weights that it has now."""
    adapter = None if prefix.adapter is None else state.adapters.current(prefix.adapter)
    if prefix.adapter is not None and adapter is None:
        return set()
    adapter_version = None if adapter is None else adapter.versioned
    tokens, weights = prompt(prefix, grid.step), sorted({lease.state.weights for lease in leases})
    hashes = [point_hashes(tokens, grid, prefix.cache_salt, adapter_version, version) for version in weights]
    view = (await state.fleet.read({pool: hashes}, {pool: grid}))[pool]
    matches = dict(zip(weights, view.matches, strict=True))
    return {
        (place.lease.worker.id, place.rank)
        for index, place in enumerate(view.candidates)
        if (hits := matches.get(place.lease.state.weights))
        and hits.option(index, place).cached * place.lease.worker.block_size >= len(tokens) - 1
    }
