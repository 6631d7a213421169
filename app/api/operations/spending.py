"""Shows what tenants and keys with limits have spent: all to operators, and its own to a key."""

from collections.abc import Iterable
from typing import NotRequired

from fastapi import APIRouter, Request
from typing_extensions import TypedDict

from app.api.operations.admin import Admin
from app.api.operations.tenant_changes import registry
from app.api.state import state_of
from app.store import clock
from app.tenants.ledger import spent
from app.tenants.limit_table import Period, Unit
from app.tenants.rates_and_budgets import Account, Left, iso, of_key, of_tenant, period
from app.tenants.records import Client, Tenant

router = APIRouter(tags=["usage"])


class BudgetSpent(TypedDict, closed=True):
    amount: float
    unit: Unit
    per: Period
    spent: float
    ends: str  # of the day, week or month, when the next one begins


class Spent(TypedDict, closed=True):
    """The use of each limit that there is."""

    budget: NotRequired[BudgetSpent]
    parallel: NotRequired[int]  # requests that run now
    requests_left: NotRequired[int]  # of this minute's, here and below
    tokens_left: NotRequired[int]


class Spending(TypedDict, closed=True):
    tenants: dict[str, Spent]  # by name; those that have such limits
    keys: dict[str, Spent]  # by id
    usage_recorded: bool  # whether /admin/usage has anything


class OwnSpending(TypedDict, closed=True):
    tenant: str
    key: str  # its name; empty where no keys are required
    of_tenant: Spent
    of_key: Spent
    usage_recorded: bool  # whether /v1/usage has anything


@router.get("/admin/spending")
async def show_spending(state: Admin) -> Spending:
    """Shows how much of their rates, parallel requests and budgets tenants and keys have used.

    Batches' own rates are not shown.
    """
    now = await registry(state)
    tenants = {tenant.name: of_tenant(tenant) for tenant in now.tenants.values()}
    keys = {key.owner: of_key(Client(Tenant(key.tenant), key.owner, key.name, key.limits)) for key in now.keys.values()}
    accounts = [account for account in (*tenants.values(), *keys.values()) if account.is_limited]
    balances = dict(
        zip((account.name for account in accounts), await spent(state.wire, state.keys, accounts), strict=True)
    )
    return {
        "tenants": _shown(tenants.items(), balances),
        "keys": _shown(keys.items(), balances),
        "usage_recorded": state.settings.records_usage,
    }


@router.get("/v1/spending")
async def show_own_spending(request: Request) -> OwnSpending:
    """Shows how much of their rates, parallel requests and budgets the API key and its tenant have used."""
    state = state_of(request)
    client = state.api_keys.client(request.scope)
    accounts = of_tenant(client.tenant), of_key(client)
    balances = await spent(state.wire, state.keys, [account for account in accounts if account.is_limited])
    rest = iter(balances)
    of_both = [_of(account, next(rest)) if account.is_limited else Spent() for account in accounts]
    return {
        "tenant": client.tenant.name,
        "key": client.name,
        "of_tenant": of_both[0],
        "of_key": of_both[1],
        "usage_recorded": state.settings.records_usage,
    }


def _shown(accounts: Iterable[tuple[str, Account]], balances: dict[str, Left]) -> dict[str, Spent]:
    return {name: _of(account, balances[account.name]) for name, account in accounts if account.name in balances}


def _of(account: Account, balance: Left) -> Spent:
    card: Spent = {}
    if (budget := account.budget) is not None:
        ends = iso(period(budget.per, clock.now())[1])
        card["budget"] = {
            "amount": budget.amount,
            "unit": budget.unit,
            "per": budget.per,
            "spent": balance.spent,
            "ends": ends,
        }
    if account.parallel:
        card["parallel"] = balance.running
    if account.requests:
        card["requests_left"] = max(0, int(balance.requests))
    if account.tokens:
        card["tokens_left"] = max(0, int(balance.tokens))
    return card
