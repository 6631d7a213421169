"""Tells which budgets are used to 80 % and to 100 %, and which of these somebody has to be told. Pure."""

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct, structs

from app.messages.wire import decoder
from app.tenants.limit_table import Budget, Period, Unit
from app.tenants.rates_and_budgets import period

Event = Literal["budget.nearly_used", "budget.used"]
_EVENTS: tuple[tuple[float, Event], ...] = ((0.8, "budget.nearly_used"), (1.0, "budget.used"))
TRIES_AFTER_S = (15, 60, 300, 1800)  # from one try to tell the webhook to the next one
_MOST = 10_000  # notices of all periods that have not ended


class BudgetUse(Struct, frozen=True, array_like=True):
    """A budget, and how much of it is used in its day, week or month."""

    tenant: str
    key: str  # the key's name; "": it is the tenant's budget
    spent: float
    amount: float
    unit: Unit
    per: Period
    began: int  # seconds since the epoch, here and below
    ends: int

    @property
    def share(self) -> float:
        return self.spent / self.amount

    @property
    def is_told_of(self) -> bool:
        return self.share >= _EVENTS[0][0]


class Notice(Struct, frozen=True, array_like=True):
    """An event about a budget, which is told once in a period."""

    event: Event
    use: BudgetUse
    due: float  # seconds since the epoch
    tries: int = 0
    is_over: bool = False  # it was told, or given up

    @property
    def name(self) -> str:
        return "|".join((self.use.tenant, self.use.key, self.use.per, str(self.use.began), self.event))


def budget_use(tenant: str, key: str, budget: Budget, use: float, now: float) -> BudgetUse:
    began, ends = map(round, period(budget.per, now))
    return BudgetUse(
        tenant, key, spent=use, amount=budget.amount, unit=budget.unit, per=budget.per, began=began, ends=ends
    )


def new_notices(uses: Iterable[BudgetUse], before: Mapping[str, Notice], now: float) -> list[Notice]:
    """The notices of budgets that have passed a threshold since. A budget that is used has no other one to come."""
    notices: list[Notice] = []
    for use in uses:
        events = [event for share, event in _EVENTS if use.share >= share]
        if events and (notice := Notice(events[-1], use, now)).name not in before:
            notices.append(notice)
    return notices[: max(0, _MOST - len(before))]


def after_try(notice: Notice, now: float, *, told: bool) -> Notice:
    if told or notice.tries >= len(TRIES_AFTER_S):
        return structs.replace(notice, is_over=True, tries=notice.tries + 1)
    return structs.replace(notice, tries=notice.tries + 1, due=now + TRIES_AFTER_S[notice.tries])


def past(notices: Iterable[Notice], now: float) -> list[Notice]:
    """The notices of periods that have ended."""
    return [notice for notice in notices if notice.use.ends <= now]


decode_uses = decoder(list[BudgetUse])
decode_notice = decoder(Notice)
