"""What a batch worker does: the tasks of `app/tasks/batch.py`, on an event loop of its own thread."""

import asyncio
import hashlib
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from itertools import count
from threading import Lock, Thread
from typing import Any, TypeVar

import orjson
import uvloop

from app.api.batch_shape import BatchRequest
from app.api.endpoints import ENDPOINTS
from app.api.models import find_model
from app.api.schemas import parse
from app.api.serving import Known, Serving, serving
from app.batch import places
from app.batch.book import Book, Fields, Ticket
from app.batch.due import TRIES_AFTER_S
from app.batch.records import Batch, Order, Problem, Status, StoredFile, packed
from app.batch.shelf import FileShelf
from app.batch.storage import Storage
from app.batch.window import read_window
from app.errors import BatchNotFound, FileGone, StorageDown, StoreDown
from app.ids import BatchId
from app.telemetry import logger
from workers.batch.answering import Answering
from workers.batch.assembling import assemble
from workers.batch.cutting import Unusable, cut
from workers.batch.leader import Leader
from workers.batch.webhook import tell

log = logger(__name__)
T = TypeVar("T")
_LOOK_S = 0.5
_SAY_EVERY = 10  # looks: that this worker still has what it has
_RETRY_S = 1.0


class Desk:
    """Implements `app.tasks.batch.Desk`."""

    serving: Serving

    def __init__(self, known: Known) -> None:
        """Raises: SettingsError."""
        self._known, self._settings = known, known.settings
        self._storage = Storage(known.settings.files_url)
        self._loop = uvloop.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="batch", daemon=True)
        self._parts: set[Answering] = set()
        self._tickets: set[Ticket] = set()
        self._handling: dict[BatchId, Status] = {}  # what is validated or finished here, and at which status
        self._lock = Lock()  # of that
        self._draining = False

    # From any thread.

    def start(self) -> None:
        self._thread.start()
        self.call(self._start())

    def call(self, coro: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coro, self._loop).result()

    def drain(self) -> None:
        """No part begins here any more; what engines have of those that did is finished."""
        self._loop.call_soon_threadsafe(self._drain)

    def stop_parts(self) -> None:
        """What engines have of them is given up."""
        self._loop.call_soon_threadsafe(self._stop)

    def close(self) -> None:
        """All tasks have ended."""
        self.call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def submit(self, path: str, endpoint: str, window: str, metadata: dict[str, str] | None, task: str) -> str:
        """Twice with one `task` it is one batch. Raises: RequestError, FileGone, StorageDown, StoreDown."""
        now = int(time.time())
        asked = {"input_file_id": "", "endpoint": endpoint, "completion_window": window, "metadata": metadata}
        parse(BatchRequest, orjson.dumps(asked)).check()
        id_ = BatchId(f"batch_{hashlib.sha256(task.encode()).hexdigest()[:24]}")
        try:
            return self.call(self._book.find(id_, None)).order.id
        except BatchNotFound:
            pass
        file = places.file_of(id_, "input")
        order = Order(id_, "", endpoint, file, window, now, now + read_window(window), metadata)
        size, name = self._storage.size(path), path.rpartition("/")[2]
        stored = StoredFile(file, "", name, "batch", size, now, now + self._settings.file_keep_s)
        self._storage.copy(path, stored.path)
        self.call(self._shelf.add(stored))
        self.call(self._book.create(order))
        return id_

    def begin(self, batch: str) -> None:
        self._handle(BatchId(batch), "validating", self._cut)

    def answer(self, batch: str, part: int, ticket: int) -> None:
        self.call(self._answer(Ticket(BatchId(batch), part, ticket)))

    def finish(self, batch: str) -> None:
        try:
            found = self.call(self._book.find(BatchId(batch), None))
        except BatchNotFound:
            return
        if found.status in ("finalizing", "cancelling"):
            self._handle(found.order.id, found.status, self._assemble)
        elif not found.cleaned:
            self._handle(found.order.id, found.status, self._clean)

    def notify(self, batch: str) -> None:
        try:
            found = self.call(self._book.find(BatchId(batch), None))
        except BatchNotFound:
            return
        url, secret = self._settings.webhook_url, self._settings.webhook_secret
        if url is None or found.told:
            return
        wrong = tell(url, secret.get_secret_value() if secret else None, found)
        tries = found.tries + 1
        if wrong:
            log.warning("webhook_not_told", batch=batch, reason=wrong, tries=tries)
        wait_s = TRIES_AFTER_S[tries - 1] if tries <= len(TRIES_AFTER_S) else 0
        fields: Fields = {"told": int(not wrong), "tries": tries, "tell_at": int(time.time()) + wait_s}
        self.call(self._book.turn(found.order.id, (found.status,), fields))

    # In a task's thread.

    def _handle(self, batch: BatchId, status: Status, work: Callable[[Batch], None]) -> None:
        """Does it, if it is still due and nobody else does; if it can't be done now, it is sent again."""
        with self._lock:
            if batch in self._handling:  # the message came twice
                return
            self._handling[batch] = status
        try:
            if self._is_mine(batch, status):
                work(self.call(self._book.find(batch, None)))
        except InterruptedError:
            log.info("batch_interrupted", batch=batch, status=status)
        except (StoreDown, StorageDown) as exc:
            log.warning("batch_work_put_off", batch=batch, status=status, error=exc.message)
        except Exception as exc:
            log.error("batch_work_broke", batch=batch, status=status, exc_info=exc)
        finally:
            with self._lock:
                del self._handling[batch]
            self.call(self._let_go(batch))
            self._loop.call_soon_threadsafe(self._leader.soon)

    def _is_mine(self, batch: BatchId, status: Status) -> bool:
        return self.call(self._book.grasp(batch, status, self.serving.dispatcher.api))

    def _cut(self, batch: Batch) -> None:
        order, began = batch.order, time.monotonic()
        id_, me = order.id, self.serving.dispatcher.api
        endpoint = ENDPOINTS[order.endpoint]

        def check(body: bytes) -> str:
            asked = parse(endpoint.schema, body)
            asked.check()
            return find_model(self.serving.models, asked.model).name

        try:
            file = self.call(self._shelf.find(order.input, order.key))
            done = cut(
                self._storage, order, file.path, check, self._settings.max_body,
                lambda: self._handling.get(id_) != "validating",
            )  # fmt: skip
        except (Unusable, FileGone) as exc:
            problem = exc.problem if isinstance(exc, Unusable) else Problem(exc.code, exc.message)
            failed: Fields = {"status": "failed", "failed_at": int(time.time()), "problems": packed([problem])}
            self.call(self._book.turn(id_, ("validating",), failed, me))
            return
        except InterruptedError:
            self._leave_nothing(id_)
            raise
        fields: Fields = {
            "status": "in_progress", "in_progress_at": int(time.time()), "model": done.model,
            "total": done.lines, "failed": done.broken, "parts": done.parts,
        }  # fmt: skip
        if not (
            self.call(self._book.lay_out(id_, done.parts, me))
            and self.call(self._book.turn(id_, ("validating",), fields, me))
        ):
            self._leave_nothing(id_)
            return
        took = round(time.monotonic() - began, 2)
        log.info("batch_validated", batch=id_, lines=done.lines, broken=done.broken, parts=done.parts, seconds=took)

    def _leave_nothing(self, batch: BatchId) -> None:
        """What was written after somebody else had cleaned up is nobody's."""
        try:
            gone = self.call(self._book.find(batch, None)).cleaned
        except BatchNotFound:
            gone = True
        if gone:
            self._storage.delete(places.folder(batch))

    def _assemble(self, batch: Batch) -> None:
        order = batch.order
        id_, now = order.id, int(time.time())
        sums = assemble(
            self._storage, batch, lambda b, part: self.call(self._book.done(b, part)),
            lambda: self._is_mine(id_, batch.status),
        )  # fmt: skip
        keep_s = order.output_expires_s or self._settings.file_keep_s
        ending = batch.ending or "completed"
        fields: dict[str, str | int | bytes] = {
            "status": ending, f"{ending}_at": now, "total": sums.completed + sums.failed,
            "completed": sums.completed, "failed": sums.failed,
            "prompt": sums.prompt, "cached": sums.cached, "completion": sums.completion,
        }  # fmt: skip
        for kind, size, field in (("output", sums.output, "output"), ("error", sums.errors, "errors_file")):
            if size:
                file = fields[field] = places.file_of(id_, kind)
                name = f"{id_}_{kind}.jsonl"
                stored = StoredFile(file, order.key, name, "batch_output", size, now, now + keep_s)
                self.call(self._shelf.add(stored))
        done = self._book.turn(id_, (batch.status,), fields, self.serving.dispatcher.api)
        if self.call(done):
            log.info("batch_ended", batch=id_, status=ending, completed=sums.completed, failed=sums.failed)

    def _clean(self, batch: Batch) -> None:
        self.call(self._book.forget_parts(batch.order.id, batch.parts))
        self._storage.delete(places.folder(batch.order.id))
        self.call(self._book.turn(batch.order.id, (batch.status,), {"cleaned": 1}))

    # On the loop.

    async def _start(self) -> None:
        self._stack = AsyncExitStack()
        self.serving = await self._stack.enter_async_context(serving(self._known))
        keys, wire = self.serving.keys, self.serving.wire
        self._book = Book(wire, keys, self._settings.batch_keep_s)
        self._shelf = FileShelf(wire, keys)
        self._leader = Leader(self.serving, self._book, webhook=self._settings.webhook_url is not None)
        self._background = [asyncio.create_task(self._leader.run()), asyncio.create_task(self._look())]

    async def _close(self) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._stack.aclose()

    def _drain(self) -> None:
        self._draining = True
        for part in self._parts:
            part.drain()
        self._loop.call_later(self._settings.drain_timeout_s, self._stop)

    def _stop(self) -> None:
        for part in self._parts:
            part.stop()

    async def _answer(self, ticket: Ticket) -> None:
        if self._draining or ticket in self._tickets:  # the message came twice
            return
        self._tickets.add(ticket)
        try:
            await self._begin(ticket)
        finally:
            self._tickets.discard(ticket)

    async def _begin(self, ticket: Ticket) -> None:
        try:
            if not await self._book.claim(ticket, self.serving.dispatcher.api):
                return
            batch = await self._book.find(ticket.batch, None)
        except (StoreDown, BatchNotFound) as exc:  # nobody says any more that it is here: it is sent again
            log.warning("part_not_begun", batch=ticket.batch, part=ticket.part, error=exc.message)
            return
        part = Answering(self.serving, self._book, self._storage, ticket, batch)
        self._parts.add(part)
        try:
            await part.run()
        finally:
            self._parts.discard(part)
            self._leader.soon()

    async def _look(self) -> None:
        """How do the batches stand that this worker has something of?"""
        for i in count(1):
            await asyncio.sleep(_LOOK_S)
            try:
                for id_ in {part.ticket.batch for part in self._parts} | set(self._handling):
                    await self._look_at(id_)
                if i % _SAY_EVERY == 0:
                    await self._say()
            except StoreDown as exc:
                log.warning("batches_not_looked_at", error=exc.message)
            except Exception:
                log.exception("desk_failed")

    async def _look_at(self, id_: BatchId) -> None:
        parts = [part for part in self._parts if part.ticket.batch == id_]
        try:
            batch = await self._book.find(id_, None)
        except BatchNotFound as exc:
            log.warning("batch_gone", error=exc.message)
            for part in parts:
                part.stop()
            return
        for part in parts:
            part.look(batch)
        with self._lock:
            if id_ in self._handling:
                self._handling[id_] = batch.status

    async def _say(self) -> None:
        """What this worker has. What Redis believes that it has, and it hasn't, is another one's soon."""
        me = self.serving.dispatcher.api
        for part in list(self._parts):
            await self._book.claim(part.ticket, me)
        for id_, status in list(self._handling.items()):
            await self._book.grasp(id_, status, me)
            if id_ not in self._handling:  # it has been let go of meanwhile
                await self._book.let_go(id_, me)

    async def _let_go(self, batch: BatchId) -> None:
        while True:
            try:
                await self._book.let_go(batch, self.serving.dispatcher.api)
                return
            except StoreDown as exc:
                log.warning("hand_not_let_go", batch=batch, error=exc.message)
            await asyncio.sleep(_RETRY_S)
