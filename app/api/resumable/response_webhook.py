"""Tells a webhook how background responses have ended. Each is told by one API replica; all take turns."""

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from app.api.resumable.store import ResumableStore
from app.errors import Cancelled, RequestNotFound, StoreDown
from app.ids import RequestId
from app.keys import Keys
from app.messages.events import Delta, Done, Event, Failed
from app.running.loops import keep
from app.settings import Settings
from app.store import Wire, clock
from app.store.scripts import DUE
from app.telemetry import logger
from app.webhooks.webhook import TRIES_AFTER_S, tell

log = logger(__name__)
_EVERY_S = 0.5
_CLAIM_S = 60.0  # longer than a call takes: then another replica tells it
_MOST = 16  # at a time


class Untold(Struct, frozen=True):
    """Names a response that the webhook does not know of: a member of `untold`."""

    request: RequestId
    tries: int = 0
    status: str = ""  # once the webhook was tried: the answer may be gone by the next time

    @classmethod
    def read(cls, member: bytes) -> "Untold":
        tries, status, request = member.decode().split("|")
        return cls(RequestId(request), int(tries), status)

    def member(self) -> str:
        return f"{self.tries}|{self.status}|{self.request}"


def status_of(events: Sequence[Event]) -> str:
    """Returns what `ResponseObject.status` has; "": it goes on."""
    end = events[-1] if events else None
    if isinstance(end, Failed):
        return "cancelled" if end.code == Cancelled.code else "failed"
    if not isinstance(end, Done):
        return ""
    finish = next((e.finish for e in reversed(events) if isinstance(e, Delta) and e.finish), None)
    return "incomplete" if finish == "length" else "completed"


class ResponseWebhook:
    """The calls of a webhook by this replica, on the API's event loop."""

    def __init__(self, wire: Wire, keys: Keys, resumable_store: ResumableStore, settings: Settings) -> None:
        assert settings.webhook_url is not None
        self._wire, self._untold, self._store = wire, keys.untold(), resumable_store
        secret = settings.webhook_secret
        self._url, self._secret = settings.webhook_url, secret.get_secret_value() if secret else None

    async def run(self) -> None:
        """Tells it until cancelled. What a turn leaves untold is due again."""
        await keep("response_webhook_failed", self._tell_due, _EVERY_S, later=True)

    async def _tell_due(self) -> None:
        """Raises: StoreDown."""
        while due := await self._due():
            await asyncio.gather(*map(self._tell, due))
            if len(due) < _MOST:
                break

    async def _due(self) -> list[Untold]:
        now = round(clock.now() * 1000)
        values = self._untold, now, round(now + _CLAIM_S * 1000), _MOST
        (members,) = await self._wire.execute([("EVAL", DUE, 1, *values)])
        due: list[Untold] = []
        for member in members:
            try:
                due.append(Untold.read(member))
            except ValueError:  # of another version, perhaps, whose replicas tell it; the others are told
                log.error("untold_not_understood", member=repr(member[:200]))
        return due

    async def _tell(self, one: Untold) -> None:
        status, wrong = one.status, ""
        try:
            status = status or await self._status(one.request)
            if status:
                wrong = await tell(self._url, self._secret, f"response.{status}", one.request)
        except StoreDown:
            raise
        except Exception as exc:  # an answer that can't be read is not tried for ever
            log.error("webhook_broke", request=one.request, exc_info=exc)
            wrong = type(exc).__name__
        commands: list[tuple[str | int, ...]] = [("ZREM", self._untold, one.member())]
        if wrong:
            log.warning("webhook_not_told", request=one.request, reason=wrong, tries=one.tries + 1)
            if one.tries < len(TRIES_AFTER_S):
                again = Untold(one.request, one.tries + 1, status)
                due_at = round((clock.now() + TRIES_AFTER_S[one.tries]) * 1000)
                commands.append(("ZADD", self._untold, due_at, again.member()))
        await self._wire.execute(commands)

    async def _status(self, request: RequestId) -> str:
        """Returns that of a background response that has ended; "": there is nothing to tell."""
        try:
            kept_request = await self._store.kept(request)
        except RequestNotFound:
            return ""
        if not kept_request.background:
            return ""
        return status_of([event for batch in await self._store.written(request) for event in batch])
