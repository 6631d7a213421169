"""What a key's limits let pass of its batches: a line over them waits, and none fails for that."""

import asyncio

from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.quota import Quota
from app.keys import Keys
from app.messages import Rate
from app.routing.cost import EXPECTED_ANSWER
from app.store import Wire

# Between two looks at what is left: others spend of it as well, so it may come sooner or later than was computed.
_LEAST_S, _MOST_S = 0.05, 2.0


def expected(plan: GenerationPlan) -> int:
    """Tokens that its answer may get."""
    return sum(s.n * min(s.max_tokens, EXPECTED_ANSWER) for s in plan.sampling)


class LineQuota(Quota):
    """Of one line. What its answer may get is charged at once, and put right when it is there: of a batch, hundreds of
    lines are admitted before the first of them is answered, which would be a debt of hours.
    """

    def __init__(self, wire: Wire, keys: Keys, rate: Rate, turn: asyncio.Lock, answer_tokens: int) -> None:
        """`turn`: of all lines in this process that draw on the same; its holder asks Redis, and the others don't."""
        super().__init__(wire, keys, rate)
        self._turn, self._expected, self._reserved = turn, answer_tokens, 0

    async def admit(self, prompt_tokens: int) -> None:
        """Waits until the limits let it pass; once, however often it is asked. Raises: StoreDown."""
        if self._admitted:
            return
        async with self._turn:
            while refused := await self._charge(1, prompt_tokens + self._expected):  # noqa: ASYNC110 (time makes it true)
                await asyncio.sleep(min(max(_LEAST_S, self._short_s(refused)), _MOST_S))
        self._admitted, self._reserved = True, self._expected

    async def spend(self, answer_tokens: int) -> None:
        """Charges what the answer has got over what was expected, or gives back the rest. Raises: StoreDown."""
        owed, self._reserved = answer_tokens - self._reserved, 0
        if self._limits["tokens"] and owed:
            await self._charge(0, owed, anyhow=True)
