"""The charge of one line of a batch: a line beyond the limits of its key and tenant waits, and doesn't fail.

For rates it waits here: they let a part pass within a minute or so. For a budget it may take a month. Meanwhile the
part would have its place among those of a batch worker, which other batches need, so it is given back.
"""

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from app.dispatch.generation_plan import GenerationPlan
from app.errors import BudgetUsed
from app.ids import RequestId
from app.routing.cost import EXPECTED_ANSWER
from app.store import clock
from app.tenants.charge import Charge
from app.tenants.cost import Used
from app.tenants.ledger import Ledger
from app.tenants.rates_and_budgets import Account, words

# Between two tries: others draw on the same limits, and these may be changed, so the computed time is an estimate.
_LEAST_S, _MOST_S = 0.05, 2.0


def expected(plan: GenerationPlan) -> int:
    """Tokens expected of its answer, at most."""
    return sum(s.seats * min(s.max_tokens, EXPECTED_ANSWER) for s in plan.sampling) if plan.generates else 0


class LineCharge(Charge):
    """The charge of one try. It charges the expected answer at once, and corrects that at the try's end: hundreds of
    lines are admitted before the first is answered, and could exceed the limits by hours. A try that no engine had
    costs nothing.

    It has its line's name: when its batch worker dies, the next one charges what this one has charged, and no more.
    """

    returns = True

    def __init__(
        self,
        ledger: Ledger,
        limits: Callable[[], tuple[Account, ...]],
        lock: asyncio.Lock,
        answer_tokens: int,
        name: RequestId,
    ) -> None:
        """`limits`: its accounts as they are now; they may change while it waits. `name`: the same at any worker.

        `lock`: shared by all lines in this process with the same accounts; only its holder asks Redis.
        """
        super().__init__(ledger, limits())
        self._limits, self._lock, self._expected, self._name = limits, lock, answer_tokens, name

    async def admit(self, request: RequestId, usage: Used, ends: float, answer: int = 0) -> None:
        """Waits until the limits admit the line. What is expected is charged, and no more is reserved: else lines that
        don't say how long their answers may be would wait for each other. Raises: BudgetUsed, also where what is left
        of a budget is reserved; StoreDown.
        """
        usage = replace(usage, completion=self._expected)
        if self._name in self._ledger.unsettled:  # of a former try here, while Redis was away
            await self._ledger.settle_rest()
        async with self._lock:
            while True:
                self._accounts = self._limits()
                if (refusal := await self._ask(self._name, usage, ends)) is None:
                    return
                if refusal.kind in ("budget", "reserved"):
                    raise BudgetUsed(words(refusal))
                await asyncio.sleep(min(max(_LEAST_S, refusal.ends - clock.now()), _MOST_S))
