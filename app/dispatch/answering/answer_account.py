"""The account of one answer: its charge, and the record of what it has used, which is made once."""

from msgspec import Struct

from app.tenants.charge import Charge
from app.tenants.cost import Used
from app.usage.meters import TENANTS
from app.usage.outbox import UsageOutbox
from app.usage.record import UsageRecord


class AnswerAccount(Struct):
    charge: Charge | None  # None: nothing limits its client
    outbox: UsageOutbox | None  # None: what requests use is not recorded
    usage: UsageRecord | None = None
    charge_is_open: bool = True

    @property
    def is_closed(self) -> bool:
        """Whether what it has used is recorded, and charged."""
        return self.usage is not None and (self.charge is None or not self.charge_is_open)

    async def answered(self, usage: UsageRecord, consumption: Used | None) -> None:
        """All is answered: that is recorded before the client is told the end, and can count on it."""
        self.usage = usage
        TENANTS.ended(usage)
        if self.outbox is None:
            return
        settlement = None
        if self.charge is not None:
            self.charge_is_open = False
            settlement = self.charge.settlement(consumption)
        if self.charge is None or settlement is None:
            await self.outbox.store(usage)
        elif replies := await self.outbox.store(usage, settlement.command):
            self.charge.settled(settlement, replies[0])

    async def settle(self, consumption: Used | None, *, cut: bool) -> None:
        """Charges all that the request has cost, unless that is done. `cut`: as `Charge.settle` has it."""
        if self.charge is not None and self.charge_is_open:
            await self.charge.settle(consumption, cut=cut)

    def ended(self, usage: UsageRecord, *, counts: bool, goes_on: bool) -> None:
        """Records what was used of an answer that is not whole. `counts`: it is a request.

        `goes_on`: another process continues the answer, and counts its tokens with these.
        """
        self.usage = usage
        if counts and not goes_on:
            TENANTS.ended(usage)
        if counts and self.outbox is not None:
            self.outbox.add(usage)
