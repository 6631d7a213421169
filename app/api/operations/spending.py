"""What tenants and keys with limits have spent, for operators."""

from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter

from app.api.http.answer_schemas import Shape
from app.api.operations.admin import Admin
from app.api.operations.tenant_changes import registry
from app.store import clock
from app.tenants.accounts import Account, Left, iso, of_key, of_tenant, period
from app.tenants.ledger import spent
from app.tenants.records import Client, Period, Tenant, Unit

router = APIRouter(prefix="/admin", tags=["admin"])


class BudgetSpent(Shape):
    amount: float
    unit: Unit
    per: Period
    spent: float
    ends: str  # of the day, week or month, when the next one begins


class Spent(Shape):
    """Of each limit that there is."""

    budget: BudgetSpent | None = None
    parallel: int | None = None  # requests that run now
    requests_left: int | None = None  # of this minute's, here and below
    tokens_left: int | None = None


class Spending(Shape):
    tenants: dict[str, Spent]  # by name; those that have such limits
    keys: dict[str, Spent]  # by id
    usage_recorded: bool  # whether /admin/usage has anything


@router.get("/spending", response_model=Spending, response_model_exclude_none=True)
async def spending(state: Admin) -> dict[str, Any]:
    """How much of their rates, parallel requests and budgets tenants and keys have used. Batches' own rates aside."""
    now = await registry(state)
    tenants = {tenant.name: of_tenant(tenant) for tenant in now.tenants.values()}
    keys = {key.owner: of_key(Client(Tenant(key.tenant), key.owner, key.name, key.limits)) for key in now.keys.values()}
    limited = [account for account in (*tenants.values(), *keys.values()) if account.is_limited]
    found = dict(zip((account.name for account in limited), await spent(state.wire, state.keys, limited), strict=True))
    return {
        "tenants": _shown(tenants.items(), found),
        "keys": _shown(keys.items(), found),
        "usage_recorded": state.settings.records_usage,
    }


def _shown(accounts: Iterable[tuple[str, Account]], found: dict[str, Left]) -> dict[str, dict[str, Any]]:
    return {name: _of(account, found[account.name]) for name, account in accounts if account.name in found}


def _of(account: Account, left: Left) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    if (budget := account.budget) is not None:
        ends = iso(period(budget.per, clock.now())[1])
        shown["budget"] = {
            "amount": budget.amount, "unit": budget.unit, "per": budget.per, "spent": left.spent, "ends": ends,
        }  # fmt: skip
    if account.parallel:
        shown["parallel"] = left.running
    if account.requests:
        shown["requests_left"] = max(0, int(left.requests))
    if account.tokens:
        shown["tokens_left"] = max(0, int(left.tokens))
    return shown
