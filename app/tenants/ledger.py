"""Keeps account of what requests cost, in Redis: for each key and each tenant, over all processes."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from app.ids import ApiId, RequestId
from app.keys import Keys
from app.running.loops import keep
from app.store import Command, Wire, clock
from app.telemetry import logger
from app.tenants.directory import Directory
from app.tenants.rates_and_budgets import DAY_S, Account, Left, period

log = logger(__name__)

_RETRY_S = 1.0
_MOST = 10_000  # requests that wait to be settled while Redis is away
_AT_ONCE = 100


class Ledger:
    """The ledger of one process. Its calls may be repeated: none counts twice."""

    def __init__(self, wire: Wire, keys: Keys, api: ApiId, directory: Directory) -> None:
        self.wire, self.keys, self.api, self.directory = wire, keys, api, directory
        self.unsettled: dict[RequestId, Command] = {}  # Redis hasn't confirmed them

    async def run(self) -> None:
        """Settles what could not be settled, until cancelled."""
        await keep("requests_not_settled", self.settle_rest, _RETRY_S, later=True)

    async def settle_rest(self) -> None:
        """Raises: StoreDown."""
        while waiting := list(self.unsettled.items())[:_AT_ONCE]:
            await self.wire.execute([command for _, command in waiting])
            for request, command in waiting:
                self.settled(request, command)

    def settle_later(self, request: RequestId, command: Command) -> None:
        """The command is sent from here, unless somebody else has sent it before, and says so."""
        self.unsettled[request] = command
        if len(self.unsettled) > _MOST:
            self.unsettled.pop(oldest := next(iter(self.unsettled)))
            log.error("request_never_settled", request=oldest)

    def settled(self, request: RequestId, command: Command) -> None:
        """Redis has confirmed it."""
        if self.unsettled.get(request) is command:
            del self.unsettled[request]

    def command(
        self, script: str, request: RequestId, accounts: tuple[Account, ...], *args: object, more: Sequence[object] = ()
    ) -> Command:
        """`args`: the script's first five. Those of accounts are behind them, and `more` behind these."""
        names, limits = _terms(self.keys, accounts, int(clock.now() // DAY_S))
        return ("EVAL", script, 1 + len(names), self.keys.charged(request), *names, *args, limits, *more)


@lru_cache(4096)
def _terms(keys: Keys, accounts: tuple[Account, ...], day: int) -> tuple[tuple[str, ...], str]:
    """The accounts' keys, and their limits as the scripts take them, on a day since the epoch."""
    names: list[str] = []
    limits: list[object] = []
    for one in accounts:
        names += keys.spent(one.rates), keys.budget(one.name), keys.running(one.name)
        if one.budget is not None:
            names.append(keys.reserved(one.name, one.budget.unit))
        limits += one.requests, one.tokens, one.spared, one.parallel, *_budget(one, day * DAY_S)
    return tuple(names), " ".join(map(str, limits))


async def spent(wire: Wire, keys: Keys, accounts: Sequence[Account]) -> list[Left]:
    """Reads what each account has left now, how many requests it runs, and what it has spent and reserved.

    Raises: StoreDown.
    """
    now = clock.now()
    questions: list[Command] = []
    for one in accounts:
        unit = "tokens" if one.budget is None else one.budget.unit
        questions += (
            ("HMGET", keys.spent(one.rates), "requests", "tokens", "at"),
            ("ZCOUNT", keys.running(one.name), now * 1000, "+inf"),
            ("HMGET", keys.budget(one.name), "kind", "from", "spent"),
            ("HVALS", keys.reserved(one.name, unit)),
        )
    replies = await wire.execute(questions)
    return [_read(one, replies[4 * i : 4 * i + 4], now) for i, one in enumerate(accounts)]


async def budgets_spent(wire: Wire, keys: Keys, accounts: Sequence[Account]) -> list[float]:
    """Reads what each account has spent of its budget. Raises: StoreDown."""
    now = clock.now()
    replies = await wire.execute([("HMGET", keys.budget(one.name), "kind", "from", "spent") for one in accounts])
    return [_spent(one, reply, now) for one, reply in zip(accounts, replies, strict=True)]


def _spent(account: Account, fields: Sequence[Any], now: float) -> float:
    """The part that was spent in this period, and not in one before."""
    kind, begins, amount = fields
    _, current_kind, period_began, _ = _budget(account, now)
    is_current = kind is not None and kind.decode() == current_kind and float(begins) >= period_began
    return float(amount) if is_current else 0.0


def _read(account: Account, replies: Sequence[Any], now: float) -> Left:
    """Reads an account's state from the replies, as the scripts do."""
    (*rates, at), running, budget, reservations = replies
    passed_min = max(0.0, now * 1000 - float(at or math.inf)) / 60_000
    requests, tokens = (
        min(limit, (limit if had is None else float(had)) + passed_min * limit)
        for limit, had in zip((account.requests, account.tokens), rates, strict=True)
    )
    spending = _spent(account, budget, now)
    return Left(requests, tokens, running if account.parallel else 0, spending, sum(map(float, reservations)))


def _budget(account: Account, now: float) -> tuple[float, str, int, int]:
    """The account's budget as the scripts take it."""
    if (budget := account.budget) is None:
        return -1, "-", 0, 0
    begins, ends = period(budget.per, now)
    return budget.amount, f"{budget.unit}/{budget.per}", round(begins * 1000), round(ends * 1000)
