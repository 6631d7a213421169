"""Keys of the planner: traffic, and how many workers each pool needs."""

from app.ids import PoolId
from app.keys.names import KeyNames


class PlanningKeys(KeyNames):
    def planning(self) -> str:
        return f"{self._fleet}planning"

    def traffic(self, window: int) -> str:
        return f"{self._fleet}traffic:{window}"

    def traffic_of(self, model: str, seconds: int) -> str:
        return f"{self._fleet}traffic-of:{model}:{seconds}"

    def planner_leader(self) -> str:
        return f"{self._fleet}planner-leader"

    def planner_speeds(self) -> str:
        return f"{self._fleet}planner-speeds"

    def desired(self, pool: PoolId) -> str:
        return f"{self._fleet}desired:{pool}"
