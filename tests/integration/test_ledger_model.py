"""The ledger's scripts do what a pure model of them does, over a real Redis."""

import time
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from app.ids import ApiId, RequestId
from app.keys import Keys
from app.store import Wire
from app.store.scripts import ADMIT, SETTLE
from app.tenants.directory import Directory
from app.tenants.ledger import Ledger
from app.tenants.limit_table import Budget
from app.tenants.rates_and_budgets import Account

KEYS = Keys("model")
APIS = ApiId("aaaaaaaa"), ApiId("bbbbbbbb")
REQUESTS = [RequestId(f"r{i}") for i in range(5)]
# Limits of a minute fill by one in ten seconds or more. The model takes over what has come after each step.
ACCOUNT = st.builds(
    Account, st.just("This API key"), st.just(""), st.just(""), st.sampled_from([0, 2, 4]),
    st.sampled_from([0, 3, 6]), st.sampled_from([0.0, 0.5]), st.sampled_from([0, 1, 2]),
    st.none() | st.builds(Budget, st.sampled_from([0.0, 4.0, 10.0]), st.sampled_from(["tokens", "money"])),
)  # fmt: skip
COSTS = st.tuples(st.integers(0, 5), st.sampled_from([0.0, 0.25, 3.0]))
ADMISSION = st.tuples(st.just("admit"), st.sampled_from(REQUESTS), st.sampled_from(APIS), COSTS)
ADOPTION = st.tuples(st.just("adopt"), st.sampled_from(REQUESTS), st.sampled_from(APIS), st.just((0, 0.0)))
END = st.tuples(st.sampled_from(["end", "cut"]), st.sampled_from(REQUESTS), st.sampled_from(APIS), COSTS)
DEATH = st.tuples(st.sampled_from(["dies", "lives"]), st.just(""), st.sampled_from(APIS), st.just((0, 0.0)))
STEPS = st.lists(ADMISSION | END | ADOPTION | DEATH, max_size=25)


@dataclass
class Model:
    """A model of what the accounts have, if no time passes."""

    accounts: tuple[Account, ...]
    charged: dict[str, tuple[int, float]] = field(default_factory=dict)
    spent: list[float] = field(default_factory=list)
    left: list[list[float]] = field(default_factory=list)  # requests and tokens
    seats: list[set[tuple[str, str]]] = field(default_factory=list)
    alive: set[str] = field(default_factory=set)
    reserved: list[dict[str, float]] = field(default_factory=list)  # by API replica
    by: dict[str, str] = field(default_factory=dict)  # who has admitted a request last, and settles it
    holders: dict[str, tuple[tuple[int, float], str]] = field(default_factory=dict)  # of a request: how much, and who

    def __post_init__(self) -> None:
        self.spent = [0.0 for _ in self.accounts]
        self.left = [[float(one.requests), float(one.tokens)] for one in self.accounts]
        self.seats = [set() for _ in self.accounts]
        self.reserved = [{} for _ in self.accounts]

    def admit(
        self, request: str, api: str, cost: tuple[int, float], more: tuple[int, float], *, adopted: bool
    ) -> set[tuple[int, str]]:
        if request not in self.charged:
            if adopted:
                return set()
            if refusals := set(self._refused(api)):
                return refusals
            self.charged[request], self.holders[request] = cost, (more, "")
            self._add(1, *cost)
        self.by[request] = api
        for one, seats in zip(self.accounts, self.seats, strict=True):
            if one.parallel:
                seats.add((api, request))
        self._hold(request, api)
        return set()

    def _hold(self, request: str, api: str) -> None:
        """Moves what a request reserves to a replica; "": to none."""
        more, holder = self.holders[request]
        if holder == api:
            return
        for one, reservations in zip(self.accounts, self.reserved, strict=True):
            if one.budget is not None and (much := more[one.budget.unit == "money"]):
                if holder in reservations:
                    reservations[holder] -= much
                    if reservations[holder] <= 0:
                        del reservations[holder]
                if api:
                    reservations[api] = reservations.get(api, 0) + much
        self.holders[request] = more, api

    def _is_reserved(self, i: int, api: str) -> bool:
        def is_full() -> bool:
            budget = self.accounts[i].budget
            return budget is not None and self.spent[i] + sum(self.reserved[i].values()) >= budget.amount

        if is_full():
            self.reserved[i] = {of: n for of, n in self.reserved[i].items() if of in self.alive | {api}}
        return is_full()

    def _refused(self, api: str) -> Any:
        for i, one in enumerate(self.accounts):
            if one.budget is not None and self.spent[i] >= one.budget.amount:
                yield i, "budget"
            elif self._is_reserved(i, api):
                yield i, "reserved"
            for kind, limit, balance in zip(
                ("requests", "tokens"), (one.requests, one.tokens), self.left[i], strict=True
            ):
                if limit and balance < max(1, limit * one.spared):
                    yield i, kind
            if one.parallel:
                if len(self.seats[i]) >= one.parallel:
                    self.seats[i] = {seat for seat in self.seats[i] if seat[0] in self.alive | {api}}
                if len(self.seats[i]) >= one.parallel:
                    yield i, "parallel"

    def settle(self, request: str, api: str, cost: tuple[int, float], *, final: bool) -> None:
        if request in self.charged and self.by[request] == api:
            tokens, money = self.charged[request]
            self._add(0, cost[0] - tokens, cost[1] - money)
            self.charged[request] = cost
            self._hold(request, "")
            if final:
                del self.charged[request]
        for seats in self.seats:
            seats.discard((api, request))

    def _add(self, requests: int, tokens: float, money: float) -> None:
        for i, one in enumerate(self.accounts):
            if one.budget is not None:
                self.spent[i] = max(0.0, self.spent[i] + (money if one.budget.unit == "money" else tokens))
            limits = float(one.requests), float(one.tokens)
            had = zip(self.left[i], (requests, tokens), limits, strict=True)
            self.left[i] = [min(limit, balance - more) if limit else 0.0 for balance, more, limit in had]


@given(st.lists(ACCOUNT, min_size=1, max_size=2).map(tuple), STEPS, st.booleans())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_accounts_are_those_of_the_model(
    redis: "Redis", wire: Wire, accounts: tuple[Account, ...], steps: list[Any], twice: bool
) -> None:
    """The two match whatever is admitted, adopted, cut off and ended by whom, and if each command comes twice."""
    await redis.flushall()
    accounts = tuple(
        Account(a.owner, f"account-{i}", f"rates-{i}", a.requests, a.tokens, a.spared, a.parallel, a.budget)
        for i, a in enumerate(accounts)
    )
    books, model = {api: Ledger(wire, KEYS, api, Directory(wire, KEYS)) for api in APIS}, Model(accounts)
    until, at = round(time.time() * 1000) + 3_600_000, time.monotonic()
    for what, request, api, cost in steps:
        if what in ("dies", "lives"):
            await (redis.delete(KEYS.api(api)) if what == "dies" else redis.set(KEYS.api(api), "1"))
            (model.alive.discard if what == "dies" else model.alive.add)(api)
            continue
        seat, reserves = f"{api}|{request}", (2 * cost[0], 2 * cost[1])
        if what in ("admit", "adopt"):
            more: tuple[object, ...] = ("" if what == "adopt" else until, KEYS.api(ApiId("")))
            behind: tuple[object, ...] = ("", "") if what == "adopt" else reserves
        else:
            more, behind = (int(what == "end"), 0), ()
        script = ADMIT if what in ("admit", "adopt") else SETTLE
        command = books[api].command(script, request, accounts, *cost, seat, *more, more=behind)
        (states, refusals), *_ = await wire.execute([command] * (1 + twice))
        if what in ("admit", "adopt"):
            expected_refusals = model.admit(request, api, cost, reserves, adopted=what == "adopt")
            assert {(int(i), kind.decode()) for i, kind in refusals} == expected_refusals
        else:
            model.settle(request, api, cost, final=what == "end")
        now = time.monotonic()
        elapsed_min, at = (now - at + 0.1) / 60, now  # minutes
        for i, (requests, tokens, running, has_spent) in enumerate(states):
            one = accounts[i]
            assert int(running) == len(model.seats[i])
            assert float(has_spent) == model.spent[i]
            for had, limit, balance in zip((requests, tokens), (one.requests, one.tokens), model.left[i], strict=True):
                assert balance - 1e-6 <= float(had) <= min(limit, balance + limit * elapsed_min) + 1e-6
            model.left[i] = [float(requests), float(tokens)]
            reservations = await redis.hgetall(KEYS.reserved(one.name, one.budget.unit if one.budget else "tokens"))
            assert {of.decode(): float(n) for of, n in reservations.items()} == model.reserved[i]
    assert {k.decode().rpartition(":")[2] for k in await redis.keys("model:charged:*")} == set(model.charged)
