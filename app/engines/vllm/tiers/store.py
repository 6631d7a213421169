"""A folder or a bucket as a tier behind vLLM's host memory: blocks are sealed, and what goes wrong is a miss.

vLLM loads the class by its name. All but the transfers themselves runs in its scheduler, and must not block. A store
that hangs costs a request `PATIENCE_S` once; then the store is left alone for `_AWAY_S`.
"""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

from typing_extensions import override
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadingSpec,
    OffloadKey,
    ReqContext,
    get_offload_block_hash,
    get_offload_group_idx,
)
from vllm.v1.kv_offload.file_mapper import FileMapper
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.backpressure import BackpressureDetector
from vllm.v1.kv_offload.tiering.base import (
    JobId,
    JobResult,
    RequestOffloadingContext,
    ScheduleEndContext,
    SecondaryTierManager,
    TransferJob,
)
from vllm.v1.kv_offload.tiering.fs.thread_pool import DualQueueThreadPool

from app.engines.vllm.tiers.label import LABEL
from app.engines.vllm.tiers.store_job import PATIENCE_S, StoreJob
from app.engines.vllm.tiers.use_notes import UseNotes
from app.kv_store.block_store import BlockStore, open_store
from app.kv_store.salts import folder
from app.kv_store.seal import BlockSeal, Damaged, read_key
from app.kv_store.uses import Uses, used

log = logging.getLogger(__name__)

_AWAY_S = 30.0
_PROMPT_S, _POLL_S = 1.0, 0.005
_LAST_S = 1.0  # for what is still to be written: the process that has started vLLM waits for 2 s
_MOST_ASKED = 100_000
_THREADS = 4  # for loads first, and as many for stores first


class StoreTier(SecondaryTierManager):  # type: ignore[misc]  # untyped for us: mypy skips vLLM
    medium = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: OffloadingSpec,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: BackpressureDetector | None = None,
        *,
        url: str,
        namespace: str,
        key_file: str = "",
        locality: str = Locality.REMOTE.value,
    ) -> None:
        """`namespace`: all that KV depends on besides tokens and what vLLM itself tells a tier.

        Raises: SettingsError.
        """
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self.locality = Locality(locality)
        self._rows = primary_kv_view.cast("B")
        self._store, self._seal = open_store(url), BlockSeal(read_key(Path(key_file)) if key_file else None)
        self._folder = _folder(namespace, offloading_spec, self.block_size_bytes)
        self._pool = DualQueueThreadPool(_THREADS, _THREADS, thread_name_prefix="kv-store")
        self._lookups = _Lookups(self._store, self._path)
        self._uses, self._notes = Uses[OffloadKey](self._store.period_s), UseNotes(self._store)
        self._jobs: dict[JobId, StoreJob] = {}
        self._results: list[JobResult] = []
        self._asked: dict[OffloadKey, float] = {}  # looked up since, monotonic
        self._back = 0.0  # when the store is asked again, monotonic
        self._events: list[OffloadingEvent] = []

    @override
    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    @override
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        now = time.monotonic()
        if now < self._back:
            return LookupResult.MISS
        is_there = self._lookups.lookup(key, req_context)
        if is_there is None:
            if len(self._asked) > _MOST_ASKED:  # requests that left before their answer
                self._asked.clear()
            if now - max(self._asked.setdefault(key, now), self._lookups.moved) < PATIENCE_S:
                return LookupResult.RETRY
            self._leave_alone()
            return LookupResult.MISS
        self._asked.pop(key, None)
        return LookupResult.HIT if is_there else LookupResult.MISS

    @override
    def submit_store(self, job_metadata: TransferJob) -> None:
        self._begin(job_metadata, self._write, self._pool.enqueue_store)

    @override
    def submit_load(self, job_metadata: TransferJob) -> None:
        self._begin(job_metadata, self._read, self._pool.enqueue_load)

    @override
    def get_finished_jobs(self) -> Iterable[JobResult]:
        self._collect()
        results, self._results = self._results, []
        return results

    @override
    def has_pending_work(self) -> bool:
        # An idle engine goes round for it, at full speed: so that what is stored is told, but not while a store hangs.
        now = time.monotonic()
        return any(now - job.moved < _PROMPT_S for job in self._jobs.values())

    @override
    def take_events(self) -> Iterable[OffloadingEvent]:
        events, self._events = self._events, []
        return events

    @override
    def drain_jobs(self) -> None:
        while self._jobs:
            self._collect()
            time.sleep(_POLL_S)

    @override
    def on_request_finished(self, req_context: ReqContext) -> None:
        self._lookups.cleanup(req_context.req_id)
        if time.monotonic() >= self._back:
            blocks = req_context._offload_key_positions.items()  # noqa: SLF001 (else only the place of one that is known)
            due = self._uses.due(blocks, time.time())
            self._notes.add([(self._path(key, req_context), when) for key, when in due])

    @override
    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        self._lookups.flush()

    @override
    def shutdown(self) -> None:
        self._lookups.shutdown()
        self._notes.end()
        end = time.monotonic() + _LAST_S
        while self._jobs and time.monotonic() < end:  # what was computed last is of use after a restart, too
            self._collect()
            time.sleep(_POLL_S)
        self._pool.shutdown(wait=False)  # one may hang
        for job in self._jobs.values():
            job.abandon()
        self._rows.release()  # else vLLM could not unmap its memory

    def _begin(self, transfer: TransferJob, move: Callable[[StoreJob], None], enqueue: Callable[..., None]) -> None:
        loads = move == self._read
        offsets = [int(chunk) * self.block_size_bytes for chunk in transfer.chunk_ids]
        job = self._jobs[transfer.job_id] = StoreJob(transfer, offsets, loads=loads)
        enqueue(transfer.job_id, 1, [lambda: self._run(move, job)])

    def _run(self, move: Callable[[StoreJob], None], job: StoreJob) -> None:
        job.begin()
        move(job)

    def _collect(self) -> None:
        for id_, success, seconds in self._pool.get_finished():
            if (job := self._jobs.pop(id_, None)) is not None:  # else it was abandoned
                self._results.append(self._ended(job, success=success, seconds=seconds))
        now = time.monotonic()
        last_move = max((job.moved for job in self._jobs.values() if job.is_begun), default=0.0)
        for job in [*self._jobs.values()]:
            # One that waits for a thread is patient as long as others get on.
            if now - (job.moved if job.is_begun else max(job.moved, last_move)) < job.patience:
                continue
            job.abandon()
            del self._jobs[job.id]
            self._leave_alone()
            self._results.append(self._ended(job, success=False, seconds=now - job.begun))

    def _ended(self, job: StoreJob, *, success: bool, seconds: float) -> JobResult:
        keys = job.keys[: job.done]
        if job.loads and not success:
            self._lookups.mark_miss(job.keys[job.done :])
        if keys:  # what was loaded may be new to an index that was lost
            self._tell(keys, removed=False)
        if job.damaged:
            self._tell(job.damaged, removed=True)
        size = len(keys) * self.block_size_bytes
        return JobResult(job.id, success, tuple(keys) or None if job.loads and not success else None, seconds, size)

    def _write(self, job: StoreJob) -> None:
        for key, offset in zip(job.keys, job.offsets, strict=True):
            path = self._path(key, job.context)
            if not self._store.has(path):
                with job.lock:  # once it is abandoned, the memory belongs to other blocks
                    job.check()
                    data = self._seal.close(bytes(key), self._rows[offset : offset + self.block_size_bytes])
                end = job.context.get_offload_key_position(key) or 0
                self._store.put(path, data, used(time.time(), self._store.period_s, end))
            job.advance()

    def _read(self, job: StoreJob) -> None:
        for key, offset in zip(job.keys, job.offsets, strict=True):
            data = self._sound(job, key)
            if data is None or job.damaged:
                continue  # it is a prefix that counts; but others may be damaged too
            with job.lock:
                job.check()
                self._rows[offset : offset + self.block_size_bytes] = data
            job.advance()
        if job.damaged:
            raise Damaged

    def _sound(self, job: StoreJob, key: OffloadKey) -> bytes | memoryview | None:
        """The block as it was stored. None if it is damaged, and then it is removed, or gone since it was looked up."""
        path = self._path(key, job.context)
        if (sealed_data := self._store.get(path)) is not None:
            try:
                data = self._seal.open(bytes(key), sealed_data)
                if len(data) == self.block_size_bytes:
                    return data
            except Damaged:
                pass
            log.warning("A stored KV block is damaged, or has another key: it is removed. %s", path)
            self._store.delete(path)
        job.damaged.append(key)
        return None

    def _path(self, key: OffloadKey, context: ReqContext) -> str:
        """Requests of another salt have other keys."""
        name, within = get_offload_block_hash(key).hex(), folder((context.kv_transfer_params or {}).get(LABEL, ""))
        return f"{self._folder}/{within}{name[:3]}/{name}-{get_offload_group_idx(key)}"

    def _tell(self, keys: Sequence[OffloadKey], *, removed: bool) -> None:
        if self._offloading_spec.kv_events_config.enable_kv_cache_events:
            self._events.append(OffloadingEvent(list(keys), self.medium, removed, self.locality))

    def _leave_alone(self) -> None:
        self._back = time.monotonic() + _AWAY_S
        self._asked.clear()
        log.warning("The store of KV blocks does not answer: nothing is loaded from it for %.0f s.", _AWAY_S)


class _Lookups(AsyncLookupManager):  # type: ignore[misc]
    """Lookups in threads of their own: a bucket takes milliseconds for each block."""

    def __init__(self, store: BlockStore, path: Callable[[OffloadKey, ReqContext], str]) -> None:
        self._store, self._path = store, path
        self._threads = ThreadPool(_THREADS)
        self.moved = 0.0  # when there was last an answer, monotonic
        super().__init__("store")

    @override
    def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> Iterable[bool]:
        return self._threads.map(lambda key: self._has(key, req_context), keys)

    def _has(self, key: OffloadKey, context: ReqContext) -> bool:
        is_there = self._store.has(self._path(key, context))
        self.moved = time.monotonic()
        return is_there

    @override
    def shutdown(self) -> None:
        self._lookup_queue.put(None)  # its thread may hang: it isn't waited for


def _folder(namespace: str, spec: OffloadingSpec, size: int) -> str:
    """The folder of interchangeable blocks: of the same model, layers, layout, parallel sizes and block bytes."""
    mapper = FileMapper.from_offloading_spec("", spec, spec.blocks_per_chunk, parallel_agnostic=True)
    fields: dict[str, Any] = mapper.get_run_config() | {"model_name": namespace, "bytes": size, "rank": mapper.rank}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:32]
