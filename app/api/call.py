"""One HTTP request that generates: its prompts on their way, and the account of what came back."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Self

import orjson
from starlette.types import Receive

from app.api.allowance import Allowance
from app.api.answer import Answer
from app.api.dispatch import Dispatcher
from app.api.explain import explained
from app.api.flight import Flight, Wishes
from app.api.models import Model
from app.api.timeline import Seen
from app.errors import StoreDown, XylemError, from_wire
from app.ids import PoolId, RequestId, WorkerId, new_request_id
from app.messages import Delta, Done, Failed, Job, Sampling
from app.routing.cost import EXPECTED_ANSWER
from app.telemetry import logger

log = logger(__name__)

# Most requests have ended by then and need no task that waits for their client to leave.
_WATCH_AFTER_S = 0.2
_EXPLAINED = 8  # prompts of one request


class Call:
    """An async context manager: entering it sends the prompts, leaving it ends all that still runs.

    Choice i of prompt p has number p * n + i.
    """

    def __init__(
        self,
        prefix: str,
        model: Model,
        prompts: Sequence[list[int]],
        sampling: Sequence[Sampling],
        *,
        dispatcher: Dispatcher,
        receive: Receive,
        timeout_s: float,
        priority: int,
        cache_salt: str | None = None,
        wishes: Wishes = Wishes(),  # noqa: B008 (frozen)
        edit: Callable[[int, Delta], Delta] | None = None,
        allowance: Allowance | None = None,
    ) -> None:
        """`edit(choice, delta)` may change each delta before it is counted and seen."""
        self.id = new_request_id(prefix)
        self._came = time.time()
        self.created = int(self._came)
        self.model, self.prompts, self.sampling = model, prompts, sampling
        self._dispatcher, self._receive, self._priority = dispatcher, receive, priority
        self._salt, self._wishes = cache_salt, wishes
        self._edit, self._failure = edit, ""
        self._allowance = allowance
        self._deadline = self._came + timeout_s
        self._flights: list[Flight] = []
        self.answer = Answer()
        self.prompt_tokens = sum(map(len, prompts))
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.choices = len(prompts) * sampling[0].n
        self.done: dict[int, Done] = {}  # prompt number → its end
        self._arrived = time.perf_counter()
        self._first: float | None = None
        self._watching: asyncio.TimerHandle | asyncio.Task[None]
        self._last = self._arrived
        alone = len(prompts) == 1
        self._numbers = {self.id if alone else RequestId(f"{self.id}-{i}"): i for i in range(len(prompts))}

    async def __aenter__(self) -> Self:
        """Sends the prompts. Raises: RateLimited, NoWorker, Saturated, StoreDown."""
        self._watching = asyncio.get_running_loop().call_later(_WATCH_AFTER_S, self._watch_client)
        try:
            if self._allowance is not None:
                await self._allowance.admit(self.prompt_tokens)
            await self._send()
        except BaseException as exc:
            await self.__aexit__(None, exc, None)
            raise
        return self

    async def __aexit__(self, _type: object, exc: BaseException | None, _trace: object) -> None:
        """Ends what still runs, and observes the metrics."""
        self._watching.cancel()
        await self._finish(exc)

    async def _send(self) -> None:
        self._flights = [self._flight(request, number) for request, number in self._numbers.items()]
        if len(self._flights) == 1:
            await self._dispatcher.send(self._flights[0])
            return
        sends = [asyncio.create_task(self._dispatcher.send(flight)) for flight in self._flights]
        done, others = await asyncio.wait(sends, return_when=asyncio.FIRST_EXCEPTION)
        if others:  # one was refused: so is the request
            self._dispatcher.abandon(list(self._numbers))
            done |= (await asyncio.wait(others))[0]
        failures = [error for error in (send.exception() for send in done) if error is not None]
        if failures:
            raise failures[0]

    async def deltas(self) -> list[tuple[int, Delta]]:
        """What has come, by choice number, not counted yet; the empty list when all prompts are done.

        Raises: the error that ended a prompt; Cancelled when the client has gone.
        """
        out: list[tuple[int, Delta]] = []
        while not out and len(self.done) < len(self.prompts):
            for event in await self.answer.take():
                if type(event) is Delta:
                    choice = self.choice(event)
                    out.append((choice, self._edit(choice, event) if self._edit else event))
                elif type(event) is Done:
                    self.done[self._numbers[event.request]] = event
                    self.cached_tokens += event.cached_tokens
                elif type(event) is Failed:
                    raise from_wire(event.code, event.message)
            self._last = time.perf_counter()
            if self._first is None:
                self._first = self._last
        return out

    async def whole(self) -> list[tuple[int, Delta]]:
        """All deltas to the end, counted. Raises what `deltas` raises."""
        out: list[tuple[int, Delta]] = []
        while batch := await self.deltas():
            out += batch
        for _, delta in out:
            self.count(delta)
        return out

    def choice(self, delta: Delta) -> int:
        return self._numbers[delta.request] * self.sampling[0].n + delta.index

    def count(self, delta: Delta) -> None:
        """Each delta once, before it is shown: chunks may carry the usage so far."""
        self.completion_tokens += len(delta.tokens)

    @property
    def edited(self) -> bool:
        """Whether deltas have to go through `deltas`, which edits them."""
        return self._edit is not None

    def envelope(self, kind: str) -> dict[str, object]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model.name}

    def failed(self, exc: XylemError) -> None:
        """Told by who has already sent the error to the client."""
        self._failure = exc.code

    def usage(self) -> dict[str, object]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }

    def headers(self) -> dict[str, str]:
        """Of the response: what is left to the API key, and where the prompts went if that was asked for."""
        allowed = {} if self._allowance is None else self._allowance.headers()
        if not self._wishes.explain:
            return allowed
        return allowed | {
            "x-xylem-route": orjson.dumps(
                [explained(f, candidates=i == 0) for i, f in enumerate(self._flights[:_EXPLAINED])]
            ).decode()
        }

    def _flight(self, request: RequestId, number: int) -> Flight:
        """The job before it is placed, attempt 0 on no worker, and where it may go."""
        sampling = self.sampling[number]
        tokens = len(self.prompts[number])
        groups = self.model.groups(tokens + min(sampling.max_tokens, EXPECTED_ANSWER), self._wishes)
        # Logprobs of a prompt come with its computation, and go out with the answer.
        prefill_groups = self.model.prefill_groups(tokens, self._wishes) if sampling.prompt_logprobs is None else ()
        job = Job(
            request,
            0,
            self._dispatcher.api,
            PoolId(""),
            WorkerId(""),
            self.prompts[number],
            sampling,
            self._deadline,
            self._priority,
            cache_salt=self._salt,
        )
        return Flight(job, groups, self.answer, self._wishes, prefill_groups)

    def _watch_client(self) -> None:
        self._watching = asyncio.create_task(self._await_disconnect())

    async def _await_disconnect(self) -> None:
        """Tells the answer when the client has gone."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.answer.client_gone()
        self._dispatcher.abandon(list(self._numbers))

    async def _finish(self, exc: BaseException | None) -> None:
        await self._dispatcher.cancel(list(self._numbers))
        try:
            if self._allowance is not None:
                await self._allowance.spend(self.completion_tokens)
        except StoreDown as down:
            log.warning("answer_not_charged", request=self.id, error=down.message)
        name = "ok" if exc is None else exc.code if isinstance(exc, XylemError) else type(exc).__name__
        self._observe(self._failure or name)

    def _observe(self, outcome: str) -> None:
        meters, now = self.model.meters, time.time()
        meters.ended(outcome)
        seen = [Seen.of(f, self.model.name, outcome, self._came, now) for f in self._flights]
        self._dispatcher.timelines.add(RequestId(self.id), seen)
        for s in seen:
            if s.timings:
                meters.stages(s.stages(), s.computed)
                if s.timings[-1].pulled is not None:
                    meters.pulled_bytes.inc(s.timings[-1].pulled.size)
        meters.duration.observe(time.perf_counter() - self._arrived)
        meters.prompt_tokens.inc(self.prompt_tokens)
        if self.cached_tokens:
            meters.cached_tokens.inc(self.cached_tokens)
        meters.output_tokens.inc(self.completion_tokens)
        if self._first is not None:
            meters.ttft.observe(self._first - self._arrived)
            steps = self.completion_tokens / self.choices - 1
            if steps > 0:
                meters.itl.observe((self._last - self._first) / steps)
