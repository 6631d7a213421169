"""Charges one request, from its admission to its end."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Self

from app.errors import BudgetUsed, RateLimited, StoreDown, XylemError
from app.ids import ApiId, RequestId
from app.store import Command, StoreFull, clock
from app.store.scripts import ADMIT, SETTLE
from app.telemetry import logger
from app.tenants.cost import NOTHING, Expense, Used, cost, price_of
from app.tenants.ledger import Ledger
from app.tenants.rates_and_budgets import Account, Kind, Left, Refusal, headers, online, refusal, retry_after_s, words
from app.tenants.records import Client

log = logger(__name__)

_NONE = ("", "")  # nothing is reserved


class Settlement(NamedTuple):
    request: RequestId
    command: Command


class Charge:
    """Admission and end are one call each, for key and tenant together."""

    returns = False  # whether the limit of requests gets one back that did not take place

    def __init__(self, ledger: Ledger, accounts: tuple[Account, ...], *, outlives: bool = False) -> None:
        """`outlives`: another process may continue the request when this one ends."""
        self._ledger, self._accounts, self._outlives = ledger, accounts, outlives
        self._left: list[Left] = []  # of the accounts, as of the last call
        self._request: RequestId | None = None  # from when it may have been admitted, until it is settled
        self._admitted = False
        self._before = NOTHING  # what earlier stages of a pipeline have cost
        self.early: Callable[[], Settlement | None] | None = None  # gives back what was admitted before its tokens

    @classmethod
    def of(cls, ledger: Ledger, client: Client, *, outlives: bool = False) -> Self | None:
        """None if nothing limits the client."""
        accounts = online(client)
        return cls(ledger, accounts, outlives=outlives) if accounts else None

    async def admit(self, request: RequestId, usage: Used, ends: float, answer: int = 0) -> None:
        """Charges the request and its prompt; only the first call does. `ends`: its deadline.

        `answer`: the most tokens that it may generate. Budgets reserve them until they are charged.
        Raises: RateLimited, BudgetUsed, StoreDown.
        """
        if self._admitted or (reason := await self._ask(request, usage, ends, answer)) is None:
            return
        error_class = BudgetUsed if reason.kind == "budget" else RateLimited
        wait_s = retry_after_s(reason, clock.now())
        error = error_class(words(reason), retry_after_s=wait_s, headers=self.headers())
        if reason.kind in ("tokens", "reserved"):
            error.type = "tokens"
        raise error

    async def adopt(self, request: RequestId) -> None:
        """Takes the place of a process that has admitted it, and died. Raises: StoreDown."""
        self._request, self._admitted = request, True
        command = self._command(ADMIT, request, NOTHING, "", "", more=_NONE)
        (reply,) = await self._ledger.wire.execute([command])
        self._take(reply)

    async def settle(self, usage: Used | None, *, cut: bool = False) -> None:
        """Charges all that the request has cost. None: it did not take place. `cut`: not by the end of its answer."""
        if (settlement := self.settlement(usage, cut=cut)) is None:
            return
        try:
            (reply,) = await self._ledger.wire.execute([settlement.command])
        except StoreDown as exc:
            log.warning("request_settled_later", request=settlement.request, error=exc.message)
            return
        self.settled(settlement, reply)

    def settlement(self, usage: Used | None, *, cut: bool = False) -> Settlement | None:
        """The settlement that `settle` sends, for a caller that sends it with commands of its own.

        None: there is nothing to settle. `settled` gets the reply. Without one, the ledger sends it again.
        """
        if self._request is None:
            return None
        request, self._request = self._request, None
        total = self._before if usage is None else self._before.plus(self._cost(usage))
        final, back = not (cut and self._outlives), usage is None and self.returns
        command = self._command(SETTLE, request, total, int(final), int(back))
        self._ledger.settle_later(request, command)  # first: the caller may be cancelled
        return Settlement(request, command)

    def settled(self, settlement: Settlement, reply: Any) -> None:
        self._ledger.settled(*settlement)
        self._take(reply)

    def add(self, usage: Used) -> None:
        """Adds what an earlier stage has cost: it is charged at the end."""
        self._before = self._before.plus(self._cost(usage))

    def headers(self) -> dict[str, str]:
        """OpenAI's x-ratelimit headers, as of the last call."""
        return headers(self._accounts, self._left) if self._left else {}

    async def _ask(self, request: RequestId, usage: Used, ends: float, answer: int = 0) -> Refusal | None:
        """Asks for admission; returns the refusal, or None if it is admitted. Raises: StoreDown."""
        self._request = request
        ledger = self._ledger
        # For a moment after Redis was away, live processes have no lease.
        leases = ledger.keys.api(ApiId("")) if ledger.wire.is_steady() else ""
        reservation: tuple[object, ...] = _NONE
        if answer and any(one.budget is not None for one in self._accounts):
            reservation = self._cost(Used(usage.model, completion=answer, parent=usage.parent))
        command = self._command(ADMIT, request, self._cost(usage), round(ends * 1000), leases, more=reservation)
        early = None if self.early is None else self.early()
        try:
            *_, reply = await ledger.wire.execute([command] if early is None else [early.command, command])
        except BaseException:  # Redis may have admitted it all the same
            self._request = None
            ledger.settle_later(request, self._command(SETTLE, request, NOTHING, 1, 1))
            raise
        if early is not None:
            ledger.settled(*early)
        self._take(reply)
        if not reply[1]:
            self._admitted = True
            return None
        self._request = None
        limits: list[tuple[int, Kind]] = [(int(i), kind.decode()) for i, kind in reply[1]]
        return refusal(self._accounts, self._left, limits, clock.now())

    def _command(
        self,
        script: str,
        request: RequestId,
        total: Expense,
        fourth: object,
        fifth: object,
        more: tuple[object, ...] = (),
    ) -> tuple[Any, ...]:
        seat = f"{self._ledger.api}|{request}"
        return self._ledger.command(script, request, self._accounts, *total, seat, fourth, fifth, more=more)

    def _cost(self, usage: Used) -> Expense:
        return cost(usage, price_of(self._ledger.directory.registry.prices, usage))

    def _take(self, reply: Any) -> None:
        self._left = [Left(float(r), float(t), int(running), float(spending)) for r, t, running, spending in reply[0]]


@asynccontextmanager
async def returned(charge: Charge | None) -> AsyncIterator[None]:
    """Gives back what was charged for a request that could not be kept, if this raises."""
    try:
        yield
    except BaseException as exc:
        if charge is not None:  # unless it was refused, Redis may have it all the same, and then it is made
            was_refused = isinstance(exc, StoreFull) or (isinstance(exc, XylemError) and not isinstance(exc, StoreDown))
            await charge.settle(None, cut=not was_refused)
        raise


class StageCharge(Charge):
    """The charge of a pipeline's stage, which is part of a request: that is admitted and settled as a whole."""

    def __init__(self, whole: Charge) -> None:
        super().__init__(whole._ledger, ())  # noqa: SLF001 (its own class)
        self._whole = whole

    async def admit(self, request: RequestId, usage: Used, ends: float, answer: int = 0) -> None:
        """Does nothing: the request was admitted with the first stage."""

    def settlement(self, usage: Used | None, *, cut: bool = False) -> Settlement | None:
        if usage is not None:
            self._whole.add(usage)
        return None

    def headers(self) -> dict[str, str]:
        return self._whole.headers()
