"""Keys of the prefix index, which has what caches hold."""

from app.ids import PlaceId, PoolId
from app.keys.names import KeyNames, remembered


class IndexKeys(KeyNames):
    def prefixes(self, pool: PoolId) -> str:
        return f"{self._fleet}prefixes:{pool}"

    @remembered
    def cached(self, pool: PoolId) -> tuple[str, str]:
        """The prefix index, and the counts of its entries."""
        return f"{self._tagged(pool)}cached:{pool}", f"{self._tagged(pool)}cached-count:{pool}"

    def tiered(self, pool: PoolId) -> tuple[str, str]:
        """The same as `cached`, for what lies behind engines' own caches."""
        return f"{self._tagged(pool)}tiered:{pool}", f"{self._tagged(pool)}tiered-count:{pool}"

    def stored(self, pool: PoolId) -> str:
        return f"{self._tagged(pool)}stored:{pool}"

    def cleaning(self, pool: PoolId) -> str:
        return f"{self._tagged(pool)}cleaning:{pool}"

    def stores(self, pool: PoolId) -> str:
        return f"{self._tagged(pool)}stores:{pool}"

    def cache_numbers(self) -> str:
        return f"{self._fleet}cache-numbers"

    def sweeping(self, pool: PoolId) -> str:
        return f"{self._fleet}sweeping:{pool}"

    def predicted(self, pool: PoolId, place: PlaceId) -> str:
        return f"{self._tagged(pool)}predicted:{pool}:{place}"
