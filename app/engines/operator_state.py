"""Tracks what operators have done to an engine (paused, put to sleep, profiled), and what they may do to it now."""

from collections.abc import Sequence

from app.errors import EngineFailed, RequestError
from app.pools.schema import Tiers

_TAGS = ("weights", "kv_cache")  # the parts of an engine's memory, as vLLM names them


class OperatorState:
    def __init__(self) -> None:
        self._paused = self._dropped = self._profiles = False  # `_dropped`: a sleep has dropped the weights
        self._asleep: list[str] = []  # the tags of what sleeps

    def check(self) -> None:
        """Raises: EngineFailed when no request can be taken."""
        if self._asleep:
            raise EngineFailed("The engine sleeps.")
        if self._dropped:
            raise EngineFailed("The engine has no weights: they were dropped, and not loaded again.")

    async def is_sleeping(self) -> bool:
        return bool(self._asleep)

    def _fell_asleep(self, level: int) -> None:
        self._asleep, self._dropped = list(_TAGS), self._dropped or level > 1

    def _check_resume(self) -> None:
        """Raises: RequestError."""
        if self._asleep:
            raise RequestError("The engine sleeps.")

    def _check_tags(self, tags: Sequence[str]) -> None:
        """Raises: RequestError."""
        if unknown := [tag for tag in tags if tag not in _TAGS]:
            raise RequestError(f"tags={unknown}: this engine has {list(_TAGS)}.", param="tags")

    def _check_update(self, tiers: Tiers | None = None) -> None:
        """Checks that the weights may change now. `tiers`: the pool's. Raises: EngineFailed, RequestError."""
        if not self._paused:
            raise EngineFailed("The engine has to be paused while its weights change.")
        if "weights" in self._asleep:
            raise RequestError("The weights sleep: wake them first, with tags=['weights'].")
        if tiers is not None and tiers.disk is not None:
            raise RequestError("This pool's store (tiers.disk) has KV of the weights that it was started with.")

    def _check_profile(self, *, runs: bool) -> None:
        """Raises: RequestError, unless the profiler runs or not, as it has to."""
        if self._profiles != runs:
            raise RequestError("The profiler does not run." if runs else "The profiler runs already.")
