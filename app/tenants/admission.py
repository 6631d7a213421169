"""Admission before work that costs more than a look: a request that its limits refuse is refused before it is done.

Most requests are admitted with their prompt's tokens, once these are counted: one call of Redis for both. That is too
late where counting costs a lot. So whatever decodes, fetches, compiles or reads a large body asks `admitted` first: the
request is then admitted by itself, without tokens or with the most that it may have; and when these are known, this
admission is given back in the same call that makes the usual one. A request that never gets so far stays counted, by
the limits of requests.
"""

from contextvars import ContextVar

from app.ids import new_request_id
from app.store import clock
from app.tenants.charge import Charge, Settlement
from app.tenants.cost import Used
from app.tenants.ledger import Ledger
from app.tenants.records import Client

_UNKNOWN = Used("")


class Admission:
    """The admission of one request, before its tokens are known. Used by one coroutine at a time."""

    __slots__ = ("_asked", "_charge", "_client", "_lasts_s", "_ledger")

    def __init__(self, ledger: Ledger, client: Client, lasts_s: float) -> None:
        """`lasts_s`: how long it takes its place among the client's parallel requests if this process dies."""
        self._ledger, self._client, self._lasts_s = ledger, client, lasts_s
        self._charge: Charge | None = None  # from when it was admitted here, until the usual admission
        self._asked = False

    async def take(self, usage: Used = _UNKNOWN) -> None:
        """Admits the request: the first call, and one with `usage`. Raises: RateLimited, BudgetUsed, StoreDown."""
        if self._asked and (usage is _UNKNOWN or self._charge is None):
            return
        self._asked = True
        if (charge := Charge.of(self._ledger, self._client)) is not None:
            charge.early = self.given_back
            name = new_request_id("early-", self._ledger.api)
            await charge.admit(name, usage, clock.now() + self._lasts_s)
            self._charge = charge

    def given_back(self) -> Settlement | None:
        """The settlement that gives it back, in one call with the usual admission; None: nothing to give back."""
        self._asked = True
        if (charge := self._charge) is None:
            return None
        self._charge, charge.returns = None, True
        return charge.settlement(None)

    async def close(self) -> None:
        """Ends the admission with its request, which stays counted if nothing else has been charged for it."""
        self._asked = True  # tasks that go on have its context
        if (charge := self._charge) is not None:
            self._charge = None
            await charge.settle(None)


current: ContextVar[Admission | None] = ContextVar("admission", default=None)  # of the request whose context this is


async def admitted(usage: Used = _UNKNOWN) -> None:
    """Admits the request, before work that costs more than it is charged for.

    `usage`: what the request may use at most, where that is found out by the work; charged until it is known.
    Raises: RateLimited, BudgetUsed, StoreDown.
    """
    if (admission := current.get()) is not None:
        await admission.take(usage)
