"""Limits and costs, as properties of pure functions."""

from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ids import KeyId, TenantId
from app.tenants.cost import Expense, Used, cost, price_of
from app.tenants.limit_table import Budget, Period, TenantLimits
from app.tenants.rates_and_budgets import (
    Account,
    Kind,
    Left,
    headers,
    iso,
    of_line,
    online,
    period,
    refusal,
    retry_after_s,
    words,
)
from app.tenants.records import Client, Price, Rate, Tenant

TIMES = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)).map(lambda at: at.replace(tzinfo=UTC))  # noqa: DTZ001 (the strategy wants none)
PERS: list[Period] = list(get_args(Period.__value__ if hasattr(Period, "__value__") else Period))
TOKENS = st.integers(0, 10**6)
MONEY = st.floats(0, 1000)
PRICES = st.builds(Price, MONEY, st.none() | MONEY, MONEY, MONEY)
NOW = datetime(2026, 7, 15, 12, tzinfo=UTC).timestamp()


@given(TIMES, st.sampled_from(PERS))
def test_a_moment_is_in_one_period_which_the_next_one_follows(at: datetime, per: Period) -> None:
    """All moments of a period have the same one."""
    now = at.timestamp()
    begins, ends = period(per, now)
    assert begins <= now < ends
    assert period(per, begins) == period(per, ends - 0.001) == (begins, ends)
    assert period(per, ends)[0] == ends
    assert period(per, begins - 0.001)[1] == begins


@given(TIMES)
def test_periods_are_days_weeks_from_monday_and_calendar_months_of_utc(at: datetime) -> None:
    """A period begins at midnight."""
    (day, next_day), (week, next_week), (month, next_month) = (
        (datetime.fromtimestamp(a, UTC), datetime.fromtimestamp(b, UTC))
        for a, b in (period(per, at.timestamp()) for per in ("day", "week", "month"))
    )
    assert all(one.time() == datetime.min.time() for one in (day, week, month))
    assert (day.date(), next_day - day) == (at.date(), timedelta(days=1))
    assert (week.weekday(), next_week - week) == (0, timedelta(days=7))
    assert (month.day, month.month, next_month.day) == (1, at.month, 1)
    assert next_month.month == at.month % 12 + 1


@given(PRICES, TOKENS, TOKENS, TOKENS, st.integers(0, 9))
def test_a_cost_is_linear_and_of_each_token_once(
    price: Price, prompt: int, cached: int, completion: int, pictures: int
) -> None:
    """A token is cached or not. All tokens count in a budget of tokens."""
    usage = Used("m", prompt, cached, completion, pictures)
    hit = min(prompt, cached)
    of_hit = price.input if price.cached_input is None else price.cached_input
    money = ((prompt - hit) * price.input + hit * of_hit + completion * price.output) / 1e6 + pictures * price.image
    assert cost(usage, price) == Expense(prompt + completion, pytest.approx(money))
    assert cost(usage, Price()).money == 0


def test_an_adapter_without_a_price_has_that_of_its_model() -> None:
    base, own = Price(1.0), Price(2.0)
    assert price_of({"m": base}, Used("sql", parent="m")) == base
    assert price_of({"m": base, "sql": own}, Used("sql", parent="m")) == own
    assert price_of({"m": base}, Used("other")) == Price()


def client(key: TenantLimits = TenantLimits(), team: TenantLimits = TenantLimits()) -> Client:  # noqa: B008 (frozen)
    return Client(Tenant(TenantId("red"), limits=team), KeyId("key_1"), "alice", key)


@given(st.data())
def test_who_has_no_limits_has_no_accounts(data: st.DataObject) -> None:
    """A client without limits costs no call."""
    some = st.none() | st.just(5)
    numbers = dict.fromkeys(("requests_per_min", "tokens_per_min", "parallel", "file_quota"), some)
    each = st.builds(TenantLimits, **numbers, budget=st.none() | st.just(Budget(5)))
    key, team = data.draw(each), data.draw(each)
    have_limits = [any((one.requests_per_min, one.tokens_per_min, one.parallel, one.budget)) for one in (key, team)]
    names = [name for name, has in zip(("key_1", "tenant/red"), have_limits, strict=True) if has]
    assert [account.name for account in online(client(key, team))] == names


def test_lines_share_rates_and_leave_half_or_have_rates_of_their_own_and_budgets_are_common() -> None:
    """The rules are the same for the key and the tenant."""
    budget = Budget(7)
    tenant_limits = TenantLimits(requests_per_min=4, tokens_per_min=9, parallel=2, budget=budget)
    own = TenantLimits(requests_per_min=4, batch_tokens_per_min=3, budget=budget)
    key, team = of_line(client(tenant_limits, own))
    assert (key.name, key.rates, key.requests, key.tokens, key.spared) == ("key_1", "key_1", 4, 9, 0.5)
    assert (team.rates, team.requests, team.tokens, team.spared) == ("tenant/red:batch", 0, 3, 0.0)
    assert (key.budget, team.budget, key.parallel) == (budget, budget, 0)
    assert team.name == "tenant/red"
    (account,) = of_line(client(), Rate("key_1:batch", 5, 6, 0.5))
    assert (account.rates, account.requests, account.tokens, account.spared) == ("key_1:batch", 5, 6, 0.5)
    assert of_line(Client(Tenant(TenantId("default"), limits=tenant_limits))) == (), "where keys are not required"


ACCOUNTS = st.builds(
    Account, st.just("This API key"), st.just("a"), st.just("a"), st.integers(1, 99), st.integers(1, 99),
    st.sampled_from([0.0, 0.5]), st.integers(1, 9), st.builds(Budget, MONEY, st.just("tokens"), st.sampled_from(PERS)),
)  # fmt: skip
LEFTS = st.builds(Left, st.floats(-1000, 0), st.floats(-1000, 0), st.integers(0, 9), MONEY)
KINDS: list[Kind] = ["requests", "tokens", "parallel", "budget"]


@given(st.lists(st.tuples(ACCOUNTS, LEFTS), min_size=2, max_size=2), st.data())
def test_a_refusal_names_the_limit_that_lasts_longest(both: list[tuple[Account, Left]], data: st.DataObject) -> None:
    """No other limit still refuses when the named one ends."""
    accounts, remainders = [one for one, _ in both], [has for _, has in both]
    causes = data.draw(st.lists(st.tuples(st.integers(0, 1), st.sampled_from(KINDS)), min_size=1, unique=True))
    longest_refusal = refusal(accounts, remainders, causes, NOW)
    alone = [refusal(accounts, remainders, [one], NOW) for one in causes]
    assert longest_refusal in alone
    assert all(one.ends <= longest_refusal.ends for one in alone)
    assert retry_after_s(longest_refusal, NOW) >= max(1, longest_refusal.ends - NOW)
    if longest_refusal.kind in ("requests", "tokens"):
        limit = getattr(longest_refusal.account, longest_refusal.kind)
        level = getattr(longest_refusal.left, longest_refusal.kind) + (longest_refusal.ends - NOW) * limit / 60
        assert level == pytest.approx(max(1, limit * longest_refusal.account.spared))
        assert iso(longest_refusal.ends) in words(longest_refusal)
    if longest_refusal.kind == "budget":
        assert longest_refusal.account.budget is not None
        assert words(longest_refusal).endswith(f"begins at {iso(period(longest_refusal.account.budget.per, NOW)[1])}.")


def test_a_time_is_never_told_too_early() -> None:
    assert iso(NOW) == "2026-07-15T12:00:00Z"
    assert iso(NOW + 0.1) == "2026-07-15T12:00:01Z"


def test_words_are_of_one_or_of_many() -> None:
    one = Account("The tenant 'red'", "a", "a", parallel=1)
    text = words(refusal([one], [Left()], [(0, "parallel")], NOW))
    assert text.startswith("The tenant 'red' may have one request at once")


@given(st.lists(st.tuples(ACCOUNTS, LEFTS), min_size=1, max_size=2))
def test_headers_are_those_of_who_has_least(both: list[tuple[Account, Left]]) -> None:
    """Nothing is said of limits that don't exist."""
    fields = headers([one for one, _ in both], [has for _, has in both])
    least = min((has.tokens, one.tokens) for one, has in both)
    assert fields["x-ratelimit-limit-tokens"] == str(least[1])
    assert fields["x-ratelimit-remaining-tokens"] == "0"
    assert headers([Account("", "a", "a", parallel=3)], [Left()]) == {}
