"""The interface of all scalers."""

from collections.abc import Sequence
from typing import Protocol

from app.ids import PoolId
from app.messages.lease import Worker
from app.planner.desired import Desired


class Scaler(Protocol):
    async def scale(self, pool: PoolId, target: Desired, workers: Sequence[Worker]) -> None:
        """Begins to start and end workers until there are as many as are desired; called again each few seconds.

        A worker is ended with SIGTERM only, and then has the time that it needs; those in `desired.drain` go first.
        `workers`: that have a lease.

        Raises: ScalingFailed.
        """

    async def close(self) -> None: ...


class RedisScaler:
    """Does nothing: others follow `desired:<pool>`, such as `xylem up --planner`."""

    async def scale(self, pool: PoolId, target: Desired, workers: Sequence[Worker]) -> None:
        pass

    async def close(self) -> None:
        pass
