"""Runs the requests whose answers are kept, and adopts those of API replicas that have died."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine

from app.api.call import Begun, Call
from app.api.flight import Out
from app.api.kept.shelf import Found, Lost, Shelf
from app.errors import Cancelled, StoreDown, XylemError
from app.ids import ApiId, RequestId
from app.messages import Delta, Done, Event, Failed, Kept, encode
from app.telemetry import logger

log = logger(__name__)

_EVERY_S = 0.5
_DEAD_S = 2.0  # an API replica without a lease for this long is dead
_RETRY_S = 0.2
_ATTEMPTS = 1000  # of one owner; those of the next one are above

Prepare = Callable[[Kept, Begun], Awaitable[Call]]  # from what the client sent


class Keeper:
    """On the API's event loop."""

    def __init__(self, shelf: Shelf, prepare: Prepare) -> None:
        self._shelf, self._prepare = shelf, prepare
        self._running: dict[RequestId, tuple[int, asyncio.Task[None]]] = {}  # with their epochs
        self._missing: dict[ApiId, float] = {}
        self.wrote = asyncio.Event()  # something that may be read

    def start(self, kept: Kept, call: Call) -> None:
        """One that came here."""
        self._run(kept.id, 0, self._keep(kept, 0, [], call))

    def _run(self, request: RequestId, epoch: int, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._running[request] = epoch, task
        task.add_done_callback(lambda _: self._running.pop(request, None))

    async def run(self) -> None:
        """Until cancelled: gives up what was cancelled elsewhere, and adopts what lost its owner."""
        try:
            while True:
                await asyncio.sleep(_EVERY_S)
                try:
                    await self._give_up()
                    await self._adopt(time.monotonic())
                except StoreDown:
                    self._missing.clear()  # who is alive had no way to say so
                except Exception:
                    log.exception("keeper_failed")
        finally:
            for _, task in list(self._running.values()):
                task.cancel()
            await asyncio.gather(*(task for _, task in self._running.values()), return_exceptions=True)

    async def cancel(self, request: RequestId) -> None:
        """Ends an answer, wherever it is made: here at once, elsewhere within `_EVERY_S`. Raises: StoreDown."""
        cancelled = await self._shelf.cancel(request, [Failed(request, 0, Cancelled.code, "It was cancelled.")])
        self.wrote.set()
        if cancelled and request in self._running:
            await self._drop([request])

    async def _give_up(self) -> None:
        own = {request: epoch for request, (epoch, _) in self._running.items()}
        epochs = await self._shelf.epochs(list(own))
        await self._drop(
            [r for (r, mine), epoch in zip(own.items(), epochs, strict=True) if epoch is not None and epoch != mine]
        )

    async def _drop(self, requests: list[RequestId]) -> None:
        for request in requests:
            if request in self._running:
                self._running[request][1].cancel()
        await self._shelf.disown(requests)

    async def _adopt(self, now: float) -> None:
        dead = await self._shelf.dead_owners()
        self._missing = {api: self._missing.get(api, now) for api in dead}
        for api, since in self._missing.items():
            if now - since >= _DEAD_S:
                for found in await self._shelf.adopt(api):
                    log.warning("request_adopted", request=found.kept.id, of=api)
                    self._run(found.kept.id, found.epoch, self._resume(found))

    async def _resume(self, found: Found) -> None:
        kept = found.kept
        batches = await self._shelf.written(kept.id)
        out: dict[int, Out] = {}
        for event in (event for batch in batches for event in batch):
            if isinstance(event, Delta):
                out.setdefault(event.index, Out([])).add(event)
        begun = Begun(kept.id, kept.created, found.epoch * _ATTEMPTS, out)
        await self._keep(kept, found.epoch, [encode(batch) for batch in batches], begun)

    async def _keep(self, kept: Kept, epoch: int, batches: list[bytes], made: Call | Begun) -> None:
        """To the end of the answer, whatever it is; or until it is another one's."""
        last: Event = Done(kept.id, 0)
        try:
            call = made if isinstance(made, Call) else await self._prepare(kept, made)
            async with call:
                while deltas := await call.deltas():
                    # From here on a delta's index counts all choices of all prompts.
                    batches.append(encode([_numbered(kept.id, choice, delta) for choice, delta in deltas]))
                    for _choice, delta in deltas:
                        call.count(delta)
                    await self._note(kept, epoch, batches, ended=False)
                last = Done(
                    kept.id, 0, call.cached_tokens, prompt_tokens=call.prompt_tokens, ended=round(time.time(), 3)
                )
        except Lost:
            return
        except XylemError as exc:
            last = Failed(kept.id, 0, exc.code, exc.message)
        except Exception as exc:
            log.error("kept_answer_broke", request=kept.id, exc_info=exc)
            last = Failed(kept.id, 0, XylemError.code, XylemError().message)
        batches.append(encode([last]))
        try:
            await self._note(kept, epoch, batches, ended=True)
        except Lost:
            return

    async def _note(self, kept: Kept, epoch: int, batches: list[bytes], *, ended: bool) -> None:
        while True:
            try:
                await self._shelf.note(kept, epoch, batches, ended=ended)
                break
            except StoreDown as exc:  # what comes meanwhile is gathered behind
                log.warning("kept_answer_not_written", request=kept.id, error=exc.message)
                await asyncio.sleep(_RETRY_S)
        self.wrote.set()


def _numbered(request: RequestId, choice: int, d: Delta) -> Delta:
    return Delta(request, 0, d.text, d.tokens, choice, d.finish, d.stop, d.logprobs, d.prompt_logprobs)
