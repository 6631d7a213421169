"""Passes one request's contents on besides answering it: to the hook, which inspects them, and to a tenant's log."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import orjson

from app.dispatch.answering.content_hook import ContentHook, Part, pause_s
from app.dispatch.generation_plan import GenerationPlan
from app.endpoints import ROWS
from app.errors import DeadlineOver, HookDown, Saturated, XylemError
from app.ids import RequestId
from app.messages.events import Delta
from app.store import clock
from app.telemetry import logger
from app.tenants.records import Client

log = logger(__name__)

Deltas = list[tuple[int, Delta]]
# By the beginning of its id, the endpoint of a request.
_ENDPOINTS = {row.prefix: row.logged or row.path for row in ROWS}


class Inspection:
    """The inspection of a request whose contents somebody else gets."""

    def __init__(
        self,
        request: RequestId,
        plan: GenerationPlan,
        client: Client,
        hook: ContentHook | None,
        names: dict[str, str],
        count: Callable[[Delta], None],
        deadline: float,
    ) -> None:
        """`names`: of the request, for the log. `count`: counts the tokens of a delta that nobody gets.

        `deadline`: seconds since the epoch.
        """
        self._count, self._deadline = count, deadline
        self._ended: XylemError | None = None  # why nobody waits for the hook any more
        self._limit: asyncio.Timeout | None = None  # of what the hook is asked now
        self._request, self._plan, self._client, self._hook, self._names = request, plan, client, hook, names
        self._texts: dict[int, list[str]] = {}  # by choice

    async def prompt(self) -> None:
        """Has the prompt inspected before it is placed. Raises: what `_check` raises."""
        if self._hook is not None and "prompt" in self._hook.parts:
            await self._check("prompt", self._asked, patient=False)

    def end(self, exc: XylemError) -> None:
        """Nobody waits for the hook any more: what it is asked, now or later, raises this."""
        self._ended = exc
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(0)

    async def deltas(self, read: Callable[[], Awaitable[Deltas]], *, patient: bool) -> Deltas:
        """Deltas of `read` that may be sent: the whole answer at once, if the hook has to see it first.

        `patient`: while the hook is down, the answer is kept, and the hook asked again. Raises: what `_check` raises.
        """
        out = await read()
        if self._hook is None or "answer" not in self._hook.parts:
            self._add(out)
            return out
        while more := await read():
            out += more
        self._add(out)
        if out:
            try:
                await self._check("answer", self._answered, patient=patient)
            except XylemError:
                for _, delta in out:  # computed it was, and that is charged
                    self._count(delta)
                raise
        return out

    async def _check(self, part: Part, read: Callable[[], dict[str, Any]], *, patient: bool) -> None:
        """Raises: ContentRefused, HookDown, Saturated; DeadlineOver; what `end` was called with."""
        if self._ended is not None:
            raise self._ended
        try:
            async with asyncio.timeout(self._deadline - clock.now()) as self._limit:
                await self._ask(part, read, patient=patient)
        except TimeoutError:
            raise self._ended or DeadlineOver from None
        finally:
            self._limit = None

    async def _ask(self, part: Part, read: Callable[[], dict[str, Any]], *, patient: bool) -> None:
        """Raises: ContentRefused; HookDown and Saturated, unless it is patient."""
        assert self._hook is not None
        for failures in count(1):
            try:
                await self._hook.check(part, read, self._names)
            except (HookDown, Saturated):
                if not patient:
                    raise
            else:
                return
            await asyncio.sleep(pause_s(failures))

    def _asked(self) -> dict[str, Any]:
        return self._who() | {"part": "prompt", "body": orjson.Fragment(self._body())}

    def _answered(self) -> dict[str, Any]:
        return self._who() | {"part": "answer", "answers": self.answers()}

    def answers(self) -> list[str]:
        """Each choice so far, as the model wrote it: with its reasoning, and calls of tools in its own notation."""
        return ["".join(self._texts[choice]) for choice in sorted(self._texts)]

    def log(self, outcome: str) -> None:
        """Logs the contents, if the tenant has agreed to it."""
        if self._client.tenant.content_logged:
            contents = {"body": self._body(), "answers": self.answers(), "outcome": outcome}
            log.info("content", **self._names, **self._who(), **contents)

    def _add(self, deltas: Deltas) -> None:
        for choice, delta in deltas:
            self._texts.setdefault(choice, []).append(delta.text)

    def _who(self) -> dict[str, Any]:
        return {
            "request": self._request,
            "tenant": self._client.tenant.name,
            "key": self._client.name,
            "model": self._plan.model.name,
            "endpoint": _ENDPOINTS.get(self._plan.prefix, ""),
        }

    def _body(self) -> str:
        body = self._plan.asked
        if body is None:
            return "{}"
        # As any: a field of a base class has all that its value has, such as an assistant's message its calls of tools.
        return str(body.model_dump_json(exclude_none=True, by_alias=True, serialize_as_any=True))
