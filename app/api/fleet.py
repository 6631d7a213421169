"""The fleet as Redis knows it, in one round trip."""

from collections.abc import Sequence

from app.ids import PoolId
from app.keys import Keys
from app.messages import Lease, decode_lease
from app.routing.fleet import Candidate
from app.store import SNAPSHOT, Command, Wire


class FleetReader:
    def __init__(self, wire: Wire, keys: Keys) -> None:
        self._wire, self._keys = wire, keys
        self._leases: dict[bytes, Lease] = {}  # a lease changes once a second and is read with every round

    async def candidates(self, *wanted: Sequence[PoolId]) -> list[list[Candidate]]:
        """For each group of pools its live workers. Raises: StoreDown."""
        replies = await self._wire.execute([self._snapshot(pools) for pools in wanted])
        groups = [[flat[i : i + 4] for i in range(0, len(flat), 4)] for flat in replies]
        known = self._leases
        self._leases = {raw: known.get(raw) or decode_lease(raw) for rows in groups for raw, *_ in rows}
        return [[Candidate(self._leases[raw], *load) for raw, *load in rows] for rows in groups]

    def _snapshot(self, pools: Sequence[PoolId]) -> Command:
        return ("EVAL", SNAPSHOT, len(pools), *(self._keys.pool(p) for p in pools), self._keys.prefix)
