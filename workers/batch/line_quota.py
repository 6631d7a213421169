"""An API key's limits for the lines of its batches: a line beyond them waits, and doesn't fail."""

import asyncio

from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.quota import Quota
from app.keys import Keys
from app.routing.cost import EXPECTED_ANSWER
from app.store import Wire
from app.tenants.records import Rate

# Between two tries: other requests draw on the same limits, so the computed time is an estimate.
_LEAST_S, _MOST_S = 0.05, 2.0


def expected(plan: GenerationPlan) -> int:
    """Tokens expected of its answer, at most."""
    return sum(s.n * min(s.max_tokens, EXPECTED_ANSWER) for s in plan.sampling)


class LineQuota(Quota):
    """One line's charges. Charges the expected answer at once, and corrects that at its end: hundreds of lines are
    admitted before the first is answered, and could exceed the limit by hours.
    """

    def __init__(self, wire: Wire, keys: Keys, rate: Rate, quota_lock: asyncio.Lock, answer_tokens: int) -> None:
        """`quota_lock`: shared by all lines in this process with the same limits; only its holder asks Redis."""
        super().__init__(wire, keys, rate)
        self._quota_lock, self._expected, self._reserved = quota_lock, answer_tokens, 0

    async def admit(self, prompt_tokens: int) -> None:
        """Waits until the limits admit the line; only the first call charges. Raises: StoreDown."""
        if self._admitted:
            return
        async with self._quota_lock:
            while refused := await self._charge(1, prompt_tokens + self._expected):  # noqa: ASYNC110 (time makes it true)
                await asyncio.sleep(min(max(_LEAST_S, self._short_s(refused)), _MOST_S))
        self._admitted, self._reserved = True, self._expected

    async def spend(self, answer_tokens: int) -> None:
        """Charges the difference of the answer's tokens to the expected ones, or gives it back. Raises: StoreDown."""
        owed, self._reserved = answer_tokens - self._reserved, 0
        if self._limits["tokens"] and owed:
            await self._charge(0, owed, anyhow=True)
