"""Limits that a request has to keep, and which of them refuses it until when. Pure."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Literal, NamedTuple

from msgspec import Struct

from app.tenants.limit_table import Budget, Period, TenantLimits
from app.tenants.records import NOBODY, Client, Rate, Tenant

Kind = Literal["requests", "tokens", "parallel", "budget", "reserved"]

_SHARED = 0.5  # of limits that lines of batches share with online requests, left to these
_KEY = "This API key"
DAY_S = 86_400
_SEAT_S = 1.0  # when to try again, if as many requests run as may: nobody knows when one ends


class Account(Struct, frozen=True):
    """The limits of one key, or of one tenant, as a request meets them."""

    owner: str  # as a refusal names it: "This API key"
    name: str  # of its budget and its requests: a key's id, or tenant/<name>
    rates: str  # of what it has left this minute; another one where batches have limits of their own
    requests: int = 0  # a minute. 0: no limit, here and below
    tokens: int = 0  # a minute
    spared: float = 0.0  # share of both that is left to other requests
    parallel: int = 0
    budget: Budget | None = None

    @property
    def is_limited(self) -> bool:
        return bool(self.requests or self.tokens or self.parallel or self.budget)


class Left(Struct, frozen=True):
    """An account's state when it was last asked; of limits that it hasn't, nothing."""

    requests: float = 0.0
    tokens: float = 0.0
    running: int = 0
    spent: float = 0.0  # of its budget
    reserved: float = 0.0  # of it, for running requests; 0 where it was not asked for


class Refusal(NamedTuple):
    account: Account
    kind: Kind
    left: Left
    ends: float  # seconds since the epoch


def online(client: Client) -> tuple[Account, ...]:
    """Accounts of a request, the key's before the tenant's. Empty: nothing limits it."""
    if client is NOBODY:
        return ()
    return tuple(account for account in (of_key(client), of_tenant(client.tenant)) if account.is_limited)


def of_line(client: Client, rate: Rate | None = None) -> tuple[Account, ...]:
    """Accounts of a line of a batch.

    A line takes no place among the parallel requests: lines wait for engines that are idle.
    `rate`: the key's limits when the batch was made, for a key that is not known any more.
    """
    if not client.key:
        return ()
    key = _line(client.limits, of_key(client))
    if rate is not None:
        key = Account(_KEY, client.key, rate.account, requests=rate.requests, tokens=rate.tokens, spared=rate.spared)
    tenant = _line(client.tenant.limits, of_tenant(client.tenant))
    return tuple(account for account in (key, tenant) if account.is_limited)


def of_key(client: Client) -> Account:
    return _of(_KEY, client.key, client.limits)


def of_tenant(tenant: Tenant) -> Account:
    return _of(f"The tenant '{tenant.name}'", f"tenant/{tenant.name}", tenant.limits)


def _of(owner: str, name: str, limits: TenantLimits) -> Account:
    requests, tokens, parallel = limits.requests_per_min or 0, limits.tokens_per_min or 0, limits.parallel or 0
    return Account(owner, name, name, requests, tokens, spared=0.0, parallel=parallel, budget=limits.budget)


def _line(limits: TenantLimits, account: Account) -> Account:
    own = limits.batch_requests_per_min, limits.batch_tokens_per_min
    if own == (None, None):
        rates, requests, tokens, spare = account.rates, account.requests, account.tokens, _SHARED
    else:
        rates, requests, tokens, spare = f"{account.name}:batch", own[0] or 0, own[1] or 0, 0.0
    return Account(
        account.owner, account.name, rates, requests, tokens=tokens, spared=spare, parallel=0, budget=account.budget
    )


def period(per: Period, now: float) -> tuple[float, float]:
    """Beginning and end of the day, week or month that `now` is in; seconds since the epoch, UTC."""
    return _of_day(per, int(now // DAY_S))


@lru_cache(8)
def _of_day(per: Period, number: int) -> tuple[float, float]:
    day = datetime.fromtimestamp(number * DAY_S, UTC)
    if per == "day":
        begin, end = day, day + timedelta(days=1)
    elif per == "week":
        begin = day - timedelta(days=day.weekday())
        end = begin + timedelta(weeks=1)
    else:
        begin = day.replace(day=1)
        end = (begin + timedelta(days=31)).replace(day=1)
    return begin.timestamp(), end.timestamp()


def refusal(
    accounts: Sequence[Account], balances: Sequence[Left], limits: Sequence[tuple[int, Kind]], now: float
) -> Refusal:
    """The refusal that lasts longest, of those of the limits that refused a request.

    `limits`: the limits' account and kind.
    """
    refusals = [
        Refusal(accounts[i], kind, balances[i], now + _wait_s(accounts[i], kind, balances[i], now))
        for i, kind in limits
    ]
    return max(refusals, key=lambda one: one.ends)


def _wait_s(account: Account, kind: Kind, balance: Left, now: float) -> float:
    if kind == "budget":
        assert account.budget is not None
        return period(account.budget.per, now)[1] - now
    if kind in ("parallel", "reserved"):
        return _SEAT_S
    limit, has = (account.requests, balance.requests) if kind == "requests" else (account.tokens, balance.tokens)
    return max(0.0, max(1.0, limit * account.spared) - has) * 60 / limit


def retry_after_s(reason: Refusal, now: float) -> int:
    return max(1, math.ceil(reason.ends - now))


def words(reason: Refusal) -> str:
    """Tells the client whose limit it is, how much, and until when."""
    account, kind, balance, ends = reason
    if kind == "parallel":
        most = f"{account.parallel} requests" if account.parallel > 1 else "one request"
        return f"{account.owner} may have {most} at once. Try again when one has ended."
    if kind not in ("budget", "reserved"):
        limit = account.requests if kind == "requests" else account.tokens
        return f"{account.owner} has used up its {limit} {kind} a minute. Try again at {iso(ends)}."
    budget = account.budget
    assert budget is not None
    sign, unit = ("$", "") if budget.unit == "money" else ("", " tokens")  # as budgets are written
    sum_so_far, most = f"{sign}{balance.spent:.12g}", f"{sign}{budget.amount:.12g}{unit}"
    if kind == "reserved":
        return (
            f"{account.owner} has spent {sum_so_far} of its budget of {most} a {budget.per}, and the "
            "answers that are being made may take the rest. Try again when one has ended, or ask for shorter ones."
        )
    return (
        f"{account.owner} has spent {sum_so_far} of its budget of {most} a {budget.per}. "
        f"The next {budget.per} begins at {iso(ends)}."
    )


def iso(at: float) -> str:
    """The time in seconds, not before it."""
    return datetime.fromtimestamp(math.ceil(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def headers(accounts: Sequence[Account], balances: Sequence[Left]) -> dict[str, str]:
    """OpenAI's x-ratelimit headers; of key and tenant, those of the one that has less."""
    pairs = list(zip(accounts, balances, strict=True))
    of_requests = [(has.requests, account.requests) for account, has in pairs if account.requests]
    of_tokens = [(has.tokens, account.tokens) for account, has in pairs if account.tokens]
    fields: dict[str, str] = {}
    for kind, limits in (("requests", of_requests), ("tokens", of_tokens)):
        if limits:
            has, limit = min(limits)
            fields[f"x-ratelimit-limit-{kind}"] = str(limit)
            fields[f"x-ratelimit-remaining-{kind}"] = str(max(0, math.floor(has)))
            fields[f"x-ratelimit-reset-{kind}"] = f"{(limit - has) * 60 / limit:.3f}s"  # until the limit is whole again
    return fields
