"""The fleet as Redis knows it, in one round trip."""

from collections.abc import Sequence

from redis.asyncio import Redis

from app.ids import PoolId
from app.keys import Keys
from app.messages import Lease, decode_lease
from app.routing.fleet import Candidate
from app.store import SNAPSHOT, translate


class FleetReader:
    def __init__(self, redis: "Redis", keys: Keys) -> None:
        self._redis, self._keys = redis, keys
        self._leases: dict[bytes, Lease] = {}  # a lease changes once a second and is read with every round

    async def candidates(self, *wanted: Sequence[PoolId]) -> list[list[Candidate]]:
        """For each group of pools its live workers. Raises: StoreDown."""
        pipe = self._redis.pipeline(transaction=False)
        for pools in wanted:
            pipe.eval(SNAPSHOT, len(pools), *(self._keys.pool(p) for p in pools), self._keys.prefix)
        with translate():
            replies = await pipe.execute()
        groups = [[flat[i : i + 4] for i in range(0, len(flat), 4)] for flat in replies]
        known = self._leases
        self._leases = {raw: known.get(raw) or decode_lease(raw) for rows in groups for raw, *_ in rows}
        return [[Candidate(self._leases[raw], *load) for raw, *load in rows] for rows in groups]
