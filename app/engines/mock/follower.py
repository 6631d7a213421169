"""The mock engine on a host that does not lead: the leader simulates all of it."""

from collections.abc import Callable, Mapping

from app.engines.base import KvEventSource, Node
from app.engines.mock.args import MockArgs
from app.engines.pool_args import parsed_args
from app.pools.schema import Pool


class MockFollower:
    def __init__(self, pool: Pool, _node: Node) -> None:
        """Raises: SettingsError, as the leader's engine."""
        parsed_args(MockArgs, pool.args)

    async def start(self, _on_death: Callable[[], None]) -> None:
        """Does nothing: there is nothing to load."""

    def kv_events(self) -> Mapping[int, KvEventSource]:
        return {}

    async def close(self) -> None:
        """Nothing to end."""
