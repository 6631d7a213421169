"""Watches the budgets: one API replica writes how much of each is used, and tells the webhook at 80 % and 100 %."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from xxhash import xxh3_64_hexdigest

from app.ids import ApiId
from app.keys import Keys
from app.messages.wire import encode
from app.running.loops import keep
from app.settings import Settings
from app.store import Command, Wire, clock
from app.store.scripts import LEAD
from app.telemetry import logger
from app.tenants.budget_notices import BudgetUse, Notice, after_try, budget_use, decode_notice, new_notices, past
from app.tenants.directory import Directory
from app.tenants.ledger import budgets_spent
from app.tenants.rates_and_budgets import Account, iso, of_key, of_tenant
from app.tenants.records import Client, Tenant
from app.webhooks.webhook import tell

log = logger(__name__)
_EVERY_S = 5.0
_LEADER_MS = 30_000  # longer than calls of the webhook take
_AT_ONCE = 500  # accounts that are read, and notices that are told
_CALLS = 16
_SHOWN = 100  # budgets that metrics name: the most used
_TTL_MS = 60_000

_Owner = tuple[str, str]  # a tenant's name, and a key's


class BudgetWatch:
    """The part of one replica. All but the leader do nothing."""

    def __init__(self, wire: Wire, keys: Keys, directory: Directory, api: ApiId, settings: Settings) -> None:
        self._wire, self._keys, self._directory = wire, keys, directory
        self._lead: Command = ("EVAL", LEAD, 1, keys.budget_leader(), api, _LEADER_MS)
        secret = settings.webhook_secret
        self._url, self._secret = settings.webhook_url, secret.get_secret_value() if secret else None

    async def run(self) -> None:
        """Watches until cancelled."""
        await keep("budgets_not_watched", self.look, _EVERY_S, later=True)

    async def look(self) -> None:
        """Raises: StoreDown."""
        (leads,) = await self._wire.execute([self._lead])
        accounts = self._accounts()
        if not leads or not accounts:
            return
        uses = await self._uses(accounts)
        most_used = sorted(uses, key=lambda use: -use.share)[:_SHOWN]
        await self._wire.execute([("SET", self._keys.budgets(), encode(most_used), "PX", _TTL_MS)])
        if self._url is not None and any(use.is_told_of for use in uses):
            await self._tell_due(uses)

    def _accounts(self) -> list[tuple[_Owner, Account]]:
        now = self._directory.registry
        tenants = [((tenant.name, ""), of_tenant(tenant)) for tenant in now.tenants.values()]
        keys = [
            ((key.tenant, key.name), of_key(Client(Tenant(key.tenant), key.owner, key.name, key.limits)))
            for key in now.keys.values()
            if key.limits.budget is not None
        ]
        return [(owner, account) for owner, account in (*tenants, *keys) if account.budget is not None]

    async def _uses(self, accounts: Sequence[tuple[_Owner, Account]]) -> list[BudgetUse]:
        uses: list[BudgetUse] = []
        for start in range(0, len(accounts), _AT_ONCE):
            part, now = accounts[start : start + _AT_ONCE], clock.now()
            amounts = await budgets_spent(self._wire, self._keys, [account for _, account in part])
            for ((tenant, key), account), amount in zip(part, amounts, strict=True):
                assert account.budget is not None
                uses.append(budget_use(tenant, key, account.budget, amount, now))
        return uses

    async def _tell_due(self, uses: Sequence[BudgetUse]) -> None:
        """Raises: StoreDown."""
        name, now = self._keys.budget_notices(), clock.now()
        (raw,) = await self._wire.execute([("HGETALL", name)])
        before = _notices(raw)
        over = past(before.values(), now)
        notices = {one.name: one for one in (*before.values(), *new_notices(uses, before, now)) if one not in over}
        due = [one for one in notices.values() if one.due <= now and not one.is_over][:_CALLS]
        results = await asyncio.gather(*map(self._tell, due))
        commands: list[Command] = [("HSET", name, one.name, encode(one)) for one in results]
        commands += [("HDEL", name, *(one.name for one in over))] if over else []
        if commands:
            await self._wire.execute(commands)

    async def _tell(self, notice: Notice) -> Notice:
        assert self._url is not None
        use = notice.use
        id_ = f"budget_{xxh3_64_hexdigest(notice.name.encode())}"
        data = {
            "tenant": use.tenant,
            "key": use.key or None,
            "share": round(use.share, 4),
            "spent": round(use.spent, 6),
            "amount": use.amount,
            "unit": use.unit,
            "per": use.per,
            "ends": iso(use.ends),
        }
        failure = await tell(self._url, self._secret, notice.event, id_, data)
        if failure:
            log.warning("webhook_not_told", budget=use.tenant, reason=failure, tries=notice.tries + 1)
        return after_try(notice, clock.now(), told=not failure)


def _notices(fields: Sequence[Any]) -> dict[str, Notice]:
    notices: dict[str, Notice] = {}
    for raw in fields[1::2]:
        try:
            notice = decode_notice(raw)
        except msgspec.DecodeError as exc:  # of another version
            log.error("budget_notice_not_understood", error=str(exc))
        else:
            notices[notice.name] = notice
    return notices
