"""Translates what the pools file says to the planner into the planner's terms."""

from collections.abc import Mapping

from app.ids import PoolId
from app.planner.observed import Objective, ScaleLimits
from app.pools.schema import PoolsFile, Scale


def objectives_of(pools_file: PoolsFile) -> dict[str, Objective]:
    """The objectives by model."""
    return {model: Objective(o.ttft_s, o.itl_s, o.share) for model, o in pools_file.planner.objectives.items()}


def scales_of(pools_file: PoolsFile) -> dict[PoolId, Scale]:
    """The scales of the pools that are planned."""
    return {name: pool.scale for name, pool in pools_file.pools.items() if pool.scale is not None}


def limits_of(scales: Mapping[PoolId, Scale], gpus: int | None) -> ScaleLimits:
    least = {pool: scale.least for pool, scale in scales.items()}
    return ScaleLimits(least, {pool: scale.most for pool, scale in scales.items()}, gpus)
