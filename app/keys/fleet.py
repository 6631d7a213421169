"""Keys of the fleet: workers, API replicas, requests, and what these tell each other."""

from app.ids import ApiId, PoolId, RunId, WorkerId
from app.keys.names import KeyNames, remembered


class FleetKeys(KeyNames):
    def pool(self, pool: PoolId) -> str:
        return f"{self._fleet}pool:{pool}"

    def seen(self, pool: PoolId) -> str:
        return f"{self._fleet}seen:{pool}"

    @remembered
    def worker(self, worker: WorkerId) -> str:
        return f"{self._fleet}worker:{worker}"

    def lost(self, pool: PoolId) -> str:
        return f"{self._fleet}lost:{pool}"

    def metrics(self, worker: WorkerId) -> str:
        return f"{self._fleet}metrics:{worker}"

    def member(self, worker: WorkerId) -> str:
        return f"{self._fleet}member:{worker}"

    def group(self, worker: WorkerId) -> str:
        return f"{self._fleet}group:{worker}"

    def gathering(self, pool: PoolId) -> str:
        return f"{self._fleet}gathering:{pool}"

    def group_epoch(self, pool: PoolId) -> str:
        return f"{self._fleet}group-epoch:{pool}"

    def api(self, api: ApiId) -> str:
        return f"{self._fleet}api:{api}"

    @remembered
    def reservations(self, worker: WorkerId) -> str:
        return f"{self._fleet}reservations:{worker}"

    @remembered
    def loads(self, pool: PoolId) -> str:
        return f"{self._fleet}loads:{pool}"

    def load(self, worker: WorkerId) -> str:
        return f"{self._fleet}load:{worker}"

    @remembered
    def limits(self, pool: PoolId) -> str:
        return f"{self._fleet}limits:{pool}"

    def pool_state(self, pool: PoolId) -> str:
        return f"{self._fleet}pool-state:{pool}"

    def pool_lock(self, pool: PoolId) -> str:
        return f"{self.pool_state(pool)}:lock"

    @remembered
    def changed(self, pool: PoolId) -> str:
        return f"{self._fleet}changed:{pool}"

    def watched(self, pool: PoolId) -> str:
        return f"{self._fleet}watched:{pool}"

    @remembered
    def prefilling(self, worker: WorkerId) -> str:
        return f"{self._fleet}prefilling:{worker}"

    @remembered
    def starting(self, pool: PoolId) -> str:
        return f"{self._fleet}starting:{pool}"

    def request(self, run: RunId) -> str:
        return f"{self._fleet}request:{run}"

    def release(self, run: RunId, worker: WorkerId, pool: PoolId) -> tuple[str, ...]:
        """The keys of `release.lua`."""
        return (
            self.request(run),
            self.reservations(worker),
            self.loads(pool),
            self.prefilling(worker),
            self.starting(pool),
        )

    def out(self, api: ApiId) -> str:
        return f"{self._tagged(api)}out:{api}"

    def out_marks(self, api: ApiId) -> str:
        return f"{self.out(api)}:marks"

    def commands(self, process: WorkerId | ApiId) -> str:
        return f"{self._fleet}commands:{process}"

    def reply(self, question: str) -> str:
        return f"{self._fleet}reply:{question}"

    def handling(self, what: str) -> str:
        return f"{self._fleet}handling:{what}"

    def recording(self) -> str:
        return f"{self._fleet}recording"

    def recorded(self, recording: str) -> str:
        return f"{self._fleet}recorded:{recording}"
