"""The limits of batches' lines, as they are today."""

import asyncio
from collections.abc import Sequence
from itertools import compress
from weakref import WeakValueDictionary

from app.batch.records import BatchOrder
from app.dispatch.generation_plan import GenerationPlan
from app.ids import BatchId, RequestId
from app.tenants.ledger import Ledger, spent
from app.tenants.limit_table import TenantLimits
from app.tenants.limits import together
from app.tenants.rates_and_budgets import Account, Left, of_line
from app.tenants.records import Client
from workers.batch.line_charge import LineCharge, expected

Accounts = tuple[Account, ...]
_AT_ONCE = 500  # lines that are looked for: more would hold the event loop


class LineLimits:
    """The limits of all lines in one batch worker."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._directory = ledger, ledger.directory
        self._locks = WeakValueDictionary[str, asyncio.Lock]()  # of `LineCharge`, by accounts

    async def known(self, order: BatchOrder) -> None:
        """Waits until its key and tenant are, also if the key is newer than the last reading. Raises: StoreDown."""
        await self._directory.loaded.wait()
        if order.key and not self._directory.knows(order.key):
            await self._directory.refresh()

    def client(self, order: BatchOrder) -> Client:
        """The client to whom the batch belongs."""
        return self._directory.client_of(order.tenant, order.key)

    def within(self, order: BatchOrder) -> TenantLimits:
        """Limits on what its lines may ask for.

        A revoked key has those with which the batch was ordered, as far as its tenant still has them.
        """
        if not order.key:
            return order.within
        client = self.client(order)
        return client.within if self._directory.knows(order.key) else together(client.tenant.limits, order.within)

    def charge(self, order: BatchOrder, plan: GenerationPlan, line: int) -> LineCharge | None:
        """The charge for one try of a line, which begins after the last one's end; None if nothing limits it."""
        return self._charge(order, _name(order, line), expected(plan)) if self._accounts(order) else None

    async def give_back(self, order: BatchOrder, lines: Sequence[int]) -> None:
        """Gives back what dead batch workers had charged for lines that nobody answers any more. Raises: StoreDown."""
        await self.known(order)
        if not self._accounts(order):
            return
        for i in range(0, len(lines), _AT_ONCE):
            names = [_name(order, line) for line in lines[i : i + _AT_ONCE]]
            are_charged = await self._ledger.wire.execute(
                [("EXISTS", self._ledger.keys.charged(name)) for name in names]
            )
            for name in compress(names, are_charged):
                charge = self._charge(order, name)
                await charge.adopt(name)
                await charge.settle(None)

    def _charge(self, order: BatchOrder, name: RequestId, answer_tokens: int = 0) -> LineCharge:
        lock = self._locks.setdefault(" ".join(one.rates for one in self._accounts(order)), asyncio.Lock())
        return LineCharge(self._ledger, lambda: self._accounts(order), lock, answer_tokens, name)

    async def of(self, orders: Sequence[BatchOrder]) -> dict[BatchId, list[tuple[Account, Left]]]:
        """The accounts of each batch, and what is left of their budgets. Raises: StoreDown."""
        accounts = {order.id: self._accounts(order) for order in orders}
        with_budget = list({one for each in accounts.values() for one in each if one.budget is not None})
        balances = await spent(self._ledger.wire, self._ledger.keys, with_budget) if with_budget else []
        balance_by_account = dict(zip(with_budget, balances, strict=True))
        return {id_: [(one, balance_by_account.get(one, Left())) for one in each] for id_, each in accounts.items()}

    def _accounts(self, order: BatchOrder) -> Accounts:
        """The batch's accounts; none where keys are not required.

        A revoked key has the limits that the batch began with.
        """
        rate = None if self._directory.knows(order.key) else order.rate
        return of_line(self.client(order), rate)


def _name(order: BatchOrder, line: int) -> RequestId:
    """The name under which a line is charged: the same at any worker."""
    return RequestId(f"{order.id}-{line}")
