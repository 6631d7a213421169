"""Budgets that somebody has to be told of, and limits that do nothing."""

from datetime import UTC, datetime

import pytest
from msgspec import structs

from app.tenants.budget_notices import TRIES_AFTER_S, BudgetUse, Notice, after_try, budget_use, new_notices, past
from app.tenants.limit_table import Budget, TenantLimits
from app.tenants.limit_warnings import limit_warnings
from app.tenants.records import Price
from app.tenants.wanted import read_budget, show_budget

NOON = datetime(2026, 7, 15, 12, tzinfo=UTC).timestamp()
DAY = 86_400


def use(share: float, tenant: str = "blue", now: float = NOON) -> BudgetUse:
    return budget_use(tenant, "", Budget(200, "money", "day"), 200 * share, now)


def events(*notices: Notice) -> list[str]:
    return [notice.event for notice in notices]


def test_each_threshold_is_told_once_a_period() -> None:
    earlier: dict[str, Notice] = {}
    for share, new in ((0.5, []), (0.8, ["budget.nearly_used"]), (0.9, []), (1.1, ["budget.used"]), (2.0, [])):
        notices = new_notices([use(share)], earlier, NOON)
        assert events(*notices) == new, share
        earlier |= {notice.name: notice for notice in notices}
    assert past(earlier.values(), NOON) == []
    assert len(past(earlier.values(), NOON + DAY)) == 2
    assert events(*new_notices([use(0.8, now=NOON + DAY)], earlier, NOON + DAY)) == ["budget.nearly_used"]


def test_a_budget_that_is_used_at_once_is_told_of_once() -> None:
    notices = new_notices([use(1.5), use(0.8, "red")], {}, NOON)
    assert events(*notices) == ["budget.used", "budget.nearly_used"]


def test_a_webhook_that_does_not_take_it_is_told_again_so_often() -> None:
    (notice,) = new_notices([use(1)], {}, NOON)
    dues = []
    while not notice.is_over:
        notice = after_try(notice, NOON, told=False)
        dues.append(notice.due - NOON)
    assert dues == [*TRIES_AFTER_S, TRIES_AFTER_S[-1]]
    assert after_try(structs.replace(notice, is_over=False, tries=0), NOON, told=True).is_over


@pytest.mark.parametrize("text", ["$50/day", "50money/day", "50 money/day"])
def test_money_is_written_as_money(text: str) -> None:
    assert read_budget(text) == Budget(50, "money", "day")
    assert show_budget(read_budget(text)) == "$50/day"


@pytest.mark.parametrize("text", ["50/day", "$50tokens/day", "$50money/day", "$0/day", "$50", "$/day", "$50/hour"])
def test_what_is_no_budget_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"1000000tokens/month or \$50/day"):
        read_budget(text)


def test_limits_that_do_nothing_are_warned_of() -> None:
    money, tokens = (TenantLimits(budget=Budget(5, unit)) for unit in ("money", "tokens"))
    prices = {"chat": Price(1.0)}
    assert limit_warnings(money, prices, keys_required=True) == []
    assert limit_warnings(tokens, {}, keys_required=None) == []
    assert "no model has a price" in limit_warnings(money, {}, keys_required=True)[0]
    two_models = structs.replace(money, models=["chat", "small"])
    assert limit_warnings(two_models, prices, keys_required=True)[0].endswith("no price of their own: small")
    assert "XYLEM_REQUIRE_KEYS" in limit_warnings(tokens, {}, keys_required=False)[0]
    assert limit_warnings(TenantLimits(), {}, keys_required=False) == []
