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
        self._script = redis.register_script(SNAPSHOT)
        self._keys = keys
        self._leases: dict[bytes, Lease] = {}  # a lease changes once a second and is read with every request

    async def candidates(self, pools: Sequence[PoolId]) -> list[Candidate]:
        """The live workers of these pools. Raises: StoreDown."""
        with translate():
            flat = await self._script(keys=[self._keys.pool(p) for p in pools], args=[self._keys.prefix])
        rows = [flat[i : i + 4] for i in range(0, len(flat), 4)]
        leases = self._leases
        self._leases = {raw: leases.get(raw) or decode_lease(raw) for raw, *_ in rows}
        return [Candidate(self._leases[raw], requests, blocks, tokens) for raw, requests, blocks, tokens in rows]
