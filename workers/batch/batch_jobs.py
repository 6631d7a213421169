"""Work on a whole batch: validating, finishing, the webhook. In a Celery task's thread, one at a time for a batch."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from threading import Lock
from typing import Any, TypeVar

import orjson
from celery.worker import state
from msgspec.structs import replace

from app.batch import paths as batch_paths
from app.batch.batch_store import BatchStore, Fields
from app.batch.file_store import FileStore
from app.batch.handling_names import of_batch, of_line
from app.batch.input_line import Broken
from app.batch.next_step import after_break, given_up
from app.batch.records import Batch, BatchOrder, Problem, Status, StoredFile, packed
from app.batch.storage import Storage
from app.batch.window import read_window
from app.dispatch.asking import Asking
from app.dispatch.media.media_reader import Asker
from app.dispatch.models.models import find_model
from app.dispatch.runtime import Runtime
from app.endpoint_registry import ENDPOINTS
from app.errors import BatchNotFound, FileGone, StorageDown, StoreDown, WorkerLost
from app.ids import BatchId, KeyId, submitted_by
from app.openai.batch_schemas import BatchRequest
from app.running.ending import end_tasks
from app.schemas.validation import parse
from app.store import clock
from app.store.handling import Handled, Handling
from app.telemetry import logger
from app.tenants.limits import check_model, check_tokens
from app.webhooks.webhook import TRIES_AFTER_S, tell
from workers.batch.answers import answers_of
from workers.batch.input_splitter import LinesLeft, SplitInput, Unusable, split_input
from workers.batch.line_limits import LineLimits
from workers.batch.result_files import write_result_files
from workers.batch.suspect_lines import CUT, GIVEN_UP, MOST_LETHAL
from workers.batch.until_done import until_done

log = logger(__name__)
T = TypeVar("T")
_MOST_CALLS = 16  # of the webhook at a time
Work = Callable[[Batch, int], None]  # of a batch, with which so many batch workers have died


class BatchJobs:
    def __init__(
        self,
        serving: Runtime,
        batch_store: BatchStore,
        storage: Storage,
        limits: LineLimits,
        handling: Handling,
        loop: asyncio.AbstractEventLoop,
        soon: Callable[[], None],
    ) -> None:
        """`loop`: that of `batch_store`, `limits` and `handling`. `soon`: called on it when work has ended."""
        self._serving, self._settings = serving, serving.settings
        self._batch_store, self._storage, self._limits = batch_store, storage, limits
        self._file_store = FileStore(serving.wire, serving.keys)
        self._handling, self._loop, self._soon = handling, loop, soon
        self.handling: dict[BatchId, Status] = {}  # the batches that are being worked on here, and their status
        self.lock = Lock()  # for `handling`
        self._telling: dict[BatchId, asyncio.Task[None]] = {}  # on `loop`
        self._calls = asyncio.Semaphore(_MOST_CALLS)

    def submit(
        self, path: str, endpoint: str, window: str, metadata: dict[str, str] | None, task: str, waits: str = ""
    ) -> str:
        """Creates a batch; only one for each `task`. `waits`: as in `BatchOrder`.

        Raises: RequestError, FileGone, StorageDown, StoreDown.
        """
        now = int(clock.now())
        request_fields = {"input_file_id": "", "endpoint": endpoint, "completion_window": window, "metadata": metadata}
        parse(BatchRequest, orjson.dumps(request_fields)).check()
        id_ = submitted_by(task)
        try:
            return self._call(self._batch_store.find(id_, None)).order.id
        except BatchNotFound:
            pass
        file = batch_paths.file_of(id_, "input")
        order = BatchOrder(
            id_,
            KeyId(""),
            endpoint,
            file,
            window,
            created=now,
            expires=now + read_window(window),
            metadata=metadata,
            waits=waits,
        )
        size, name = self._storage.size(path), path.rpartition("/")[2]
        input_file = StoredFile(
            file, order.key, name, purpose="batch", size=size, created=now, expires=now + self._settings.file_keep_s
        )
        self._storage.copy(path, input_file.path)
        self._call(self._file_store.add(input_file))
        self._call(self._batch_store.create(order))
        if task in state.revoked:  # meanwhile
            self._call(self._batch_store.cancel(id_))
        return id_

    def begin(self, batch: str) -> None:
        most = CUT + MOST_LETHAL * (self._settings.max_migrations + 1)  # its lines are counted, too
        self._handle(BatchId(batch), "validating", self._validate, most)

    def finish(self, batch: str) -> None:
        try:
            record = self._call(self._batch_store.find(BatchId(batch), None))
        except BatchNotFound:
            return
        if record.status in ("finalizing", "cancelling"):
            self._handle(record.order.id, record.status, self._write_results)
        elif not record.cleaned:
            self._handle(record.order.id, record.status, self._clean)

    def answers(self, batch: str) -> dict[str, Any]:
        """The end of the batch, for a task that waits for it. Raises: BatchNotFound, StorageDown, StoreDown."""
        return answers_of(self._storage, self._call(self._batch_store.find(BatchId(batch), None)))

    def given(self, batch: str) -> None:
        with suppress(BatchNotFound):  # it has been erased
            record = self._call(self._batch_store.find(BatchId(batch), None))
            self._call(self._batch_store.set_status(record.order.id, (record.status,), {"given": 1}))

    def notify(self, batch: str) -> None:
        """Returns at once: a webhook that is slow must not hold the threads in which batches are answered."""
        self._loop.call_soon_threadsafe(self._begin_to_tell, BatchId(batch))

    async def close(self) -> None:
        """Calls of the webhook that have not ended are made again, by another batch worker."""
        await end_tasks([*self._telling.values()])

    def _begin_to_tell(self, batch: BatchId) -> None:
        if batch not in self._telling:  # the leader sends it again while it lasts
            self._telling[batch] = self._loop.create_task(self._tell(batch))

    async def _tell(self, batch: BatchId) -> None:
        try:
            async with self._calls:
                await self._call_webhook(batch)
        except BatchNotFound:
            pass
        except StoreDown as exc:  # the leader sends it again
            log.warning("webhook_put_off", batch=batch, error=exc.message)
        finally:
            del self._telling[batch]

    async def _call_webhook(self, batch: BatchId) -> None:
        """Raises: BatchNotFound, StoreDown."""
        record = await self._batch_store.find(batch, None)
        url, secret = self._settings.webhook_url, self._settings.webhook_secret
        if url is None or record.told:
            return
        kind = f"batch.{record.status}"
        try:
            wrong = await tell(url, secret.get_secret_value() if secret else None, kind, batch)
        except Exception as exc:
            wrong = type(exc).__name__
            log.error("webhook_broke", batch=batch, exc_info=exc)
        tries = record.tries + 1
        if wrong:
            log.warning("webhook_not_told", batch=batch, reason=wrong, tries=tries)
        wait_s = TRIES_AFTER_S[tries - 1] if tries <= len(TRIES_AFTER_S) else 0
        fields: Fields = {"told": int(not wrong), "tries": tries, "tell_at": int(clock.now()) + wait_s}
        await self._batch_store.set_status(batch, (record.status,), fields)

    def _handle(self, batch: BatchId, status: Status, work: Work, most: int | None = None) -> None:
        """Does `work` if it is still due and this worker gets the lock. If it fails, the leader sends it again.

        `most`: batch workers that may die with it; None: as many as with a request.
        """
        with self.lock:
            if batch in self.handling:  # delivered twice
                return
            self.handling[batch] = status
        try:
            if self._has_lock(batch, status):
                with self._counted(of_batch(batch, status)) as handling:
                    record = self._call(self._batch_store.find(batch, None))
                    if handling.deaths > (self._settings.max_migrations if most is None else most):
                        self._give_up(record)
                    else:
                        self._try(work, record, handling.deaths)
                    handling.done = True
        except InterruptedError:
            log.info("batch_interrupted", batch=batch, status=status)
        except (StoreDown, StorageDown) as exc:
            log.warning("batch_work_put_off", batch=batch, status=status, error=exc.message)
        finally:
            with self.lock:
                del self.handling[batch]
            self._call(until_done(batch, self._batch_store.unlock, batch, self._serving.dispatcher.api))
            self._loop.call_soon_threadsafe(self._soon)

    @contextmanager
    def _counted(self, what: str, *, alone: bool = False) -> Iterator[Handled]:
        """Counts `what` while it is handled, as `Handling.of` does. Raises: StoreDown."""
        count = self._handling.of(what, alone=alone)
        handling = self._call(count.__aenter__())
        try:
            yield handling
        finally:
            self._call(count.__aexit__(None, None, None))

    def _give_up(self, batch: Batch) -> None:
        log.error("batch_given_up", batch=batch.order.id, status=batch.status)
        fields = given_up(batch, clock.now(), "batch workers died each time they began it.")
        me = self._serving.dispatcher.api
        self._call(self._batch_store.set_status(batch.order.id, (batch.status,), fields, me))

    def _try(self, work: Work, batch: Batch, deaths: int) -> None:
        """Counts internal errors; too many end the work. Raises: InterruptedError, StoreDown, StorageDown."""
        try:
            work(batch, deaths)
        except (InterruptedError, StoreDown, StorageDown):
            raise
        except Exception as exc:
            log.error(
                "batch_work_broke", batch=batch.order.id, status=batch.status, times=batch.broke + 1, exc_info=exc
            )
            fields, me = after_break(batch, clock.now()), self._serving.dispatcher.api
            self._call(self._batch_store.set_status(batch.order.id, (batch.status,), fields, me))

    def _has_lock(self, batch: BatchId, status: Status) -> bool:
        return self._call(self._batch_store.lock(batch, status, self._serving.dispatcher.api))

    def _validate(self, batch: Batch, deaths: int) -> None:
        id_, me, began = batch.order.id, self._serving.dispatcher.api, time.monotonic()
        try:
            split = self._split(batch, deaths)
            self._count_lines(batch.order, split.lines)
        except (Unusable, FileGone) as exc:
            problem = exc.problem if isinstance(exc, Unusable) else Problem(exc.code, exc.message)
            failure: Fields = {"status": "failed", "failed_at": int(clock.now()), "problems": packed([problem])}
            self._call(self._batch_store.set_status(id_, ("validating",), failure, me))
            return
        except InterruptedError:
            self._delete_if_cleaned(id_)
            raise
        fields: Fields = {
            "status": "in_progress",
            "in_progress_at": int(clock.now()),
            "model": split.model,
            "total": split.lines,
            "failed": split.broken,
            "parts": split.parts,
            "broke": 0,
        }
        if not (
            self._call(self._batch_store.set_parts(id_, split.parts, me))
            and self._call(self._batch_store.set_status(id_, ("validating",), fields, me))
        ):
            self._delete_if_cleaned(id_)
            return
        took = round(time.monotonic() - began, 2)
        log.info("batch_validated", batch=id_, lines=split.lines, broken=split.broken, parts=split.parts, seconds=took)

    def _split(self, batch: Batch, deaths: int) -> SplitInput:
        """`deaths`: of batch workers that began it before.

        Raises: Unusable, FileGone, StorageDown, StoreDown; InterruptedError when the batch's status changes.
        """
        order = batch.order
        file = self._call(self._file_store.find(order.input, order.key))
        self._call(self._serving.look())  # a replica may have just added a model
        self._call(self._limits.known(order))
        return split_input(
            self._storage,
            order,
            file.path,
            partial(self._check, order),
            self._settings.max_body,
            has_stopped=lambda: self.handling.get(order.id) != batch.status,
            lines_left=self._lines_left(order),
            guard=partial(self._counted_line, order.id) if deaths >= CUT else nullcontext,
        )

    def _check(self, order: BatchOrder, body: bytes) -> str:
        """Checks a line's body, as `input_splitter.Check`: by the limits of today, as for lines that are sent later."""
        endpoint, within = ENDPOINTS[order.endpoint], self._limits.within(order)
        asking, request = Asking(self._serving, within, Asker(order.key)), parse(endpoint.schema, body)
        request.check()
        if not request.model:
            request = self._call(asking.served(request, endpoint.row.name))
        check_model(within, request.model)
        check_tokens(within, request)
        asking.check_no_pipeline(request)
        return find_model(self._serving.models, self._serving.aliases.primary(request.model), endpoint.row.task).name

    @contextmanager
    def _counted_line(self, batch: BatchId, number: int) -> Iterator[None]:
        """Raises: Broken, if too many batch workers have died with the line; StoreDown."""
        with self._counted(of_line(batch, number), alone=True) as handling:
            if handling.deaths > self._settings.max_migrations:
                log.error("line_given_up", batch=batch, line=number)
                raise Broken(Problem(WorkerLost.code, GIVEN_UP, number))
            handling.done = True
            yield

    def _count_lines(self, order: BatchOrder, lines: int) -> None:
        """Counts them among those of unfinished batches: others may have been validated meanwhile. Raises: Unusable."""
        was_counted = False
        while not was_counted:
            counts = self._call(self._batch_store.counts())
            if (allowance := self._lines_left(order)) is None:
                return
            if lines > allowance.lines:
                raise allowance.exceeded()
            was_counted = self._call(
                self._batch_store.count_lines(order.id, lines, counts, self._serving.dispatcher.api)
            )

    def _lines_left(self, order: BatchOrder) -> LinesLeft | None:
        """Beside other batches that aren't finished, of its client and of its tenant; None: any number."""
        of_key, of_tenant = order.within.batch_lines, order.tenant_lines
        if of_key is None and of_tenant is None:
            return None
        others = [other for other in self._call(self._batch_store.live()) if other.order.id != order.id]
        allowances: list[LinesLeft] = []
        if of_key is not None:
            had = sum(other.left for other in others if other.order.key == order.key)
            allowances.append(LinesLeft(of_key - had, of_key, "Your"))
        if of_tenant is not None:
            had = sum(other.left for other in others if other.order.tenant == order.tenant)
            allowances.append(LinesLeft(of_tenant - had, of_tenant, "Your tenant's"))
        return min(allowances)

    def _delete_if_cleaned(self, batch: BatchId) -> None:
        """Deletes parts written after another worker had cleaned up."""
        try:
            is_cleaned = self._call(self._batch_store.find(batch, None)).cleaned
        except BatchNotFound:
            is_cleaned = True
        if is_cleaned:
            self._storage.delete(batch_paths.folder(batch))

    def _write_results(self, batch: Batch, deaths: int) -> None:
        order = batch.order
        id_, now = order.id, int(clock.now())
        if batch.in_progress_at is None:  # it ended before its lines were read
            with suppress(Unusable, FileGone):
                batch = replace(batch, parts=self._split(batch, deaths).parts)
        sums = write_result_files(
            self._storage,
            batch,
            lambda b, part: self._call(self._batch_store.done(b, part)),
            lambda: self._has_lock(id_, batch.status),
        )
        self._call(self._limits.give_back(order, sums.not_executed))
        keep_s = order.output_expires_s or self._settings.file_keep_s
        ending = batch.ending or "completed"
        fields: dict[str, str | int | bytes] = {
            "status": ending,
            f"{ending}_at": now,
            "total": sums.completed + sums.failed,
            "completed": sums.completed,
            "failed": sums.failed,
            "not_executed": len(sums.not_executed),
            "prompt": sums.prompt,
            "cached": sums.cached,
            "completion": sums.completion,
        }
        for kind, size, field in (("output", sums.output, "output"), ("error", sums.errors, "errors_file")):
            if size:
                file = fields[field] = batch_paths.file_of(id_, kind)
                name = f"{id_}_{kind}.jsonl"
                result_file = StoredFile(file, order.key, name, "batch_output", size, created=now, expires=now + keep_s)
                self._call(self._file_store.add(result_file))
        change = self._batch_store.set_status(id_, (batch.status,), fields, self._serving.dispatcher.api)
        if self._call(change):
            log.info("batch_ended", batch=id_, status=ending, completed=sums.completed, failed=sums.failed)

    def _clean(self, batch: Batch, _deaths: int) -> None:
        self._call(self._batch_store.forget_parts(batch.order.id, batch.parts))
        if batch.status != "failed" or batch.in_progress_at is None:  # else only these files have its answers
            self._storage.delete(batch_paths.folder(batch.order.id))
        self._call(self._batch_store.set_status(batch.order.id, (batch.status,), {"cleaned": 1}))

    def _call(self, coro: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coro, self._loop).result()
