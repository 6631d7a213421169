"""Host memory as a tier on a machine without an accelerator: vLLM's own spec copies with CUDA, this one with NumPy.

There the engine's cache is host memory too; what this tier brings is what lies behind it, a store, and room for blocks
that the engine has evicted. vLLM loads the class by its name, from `kv_connector_extra_config`.
"""

import time
from collections.abc import Iterable

import numpy as np
import torch
from typing_extensions import override
from vllm.v1.kv_offload.base import CanonicalKVCaches, GPULoadStoreSpec, LoadStoreSpec, OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class CpuMemorySpec(TieringOffloadingSpec):  # type: ignore[misc]  # untyped for us: mypy skips vLLM
    _worker: OffloadingWorker | None

    @override
    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if self._worker is None:
            self._worker = self._copier(kv_caches)
        return self._worker

    def _copier(self, kv_caches: CanonicalKVCaches) -> "_Copier":
        region = SharedOffloadRegion(
            engine_id=self._engine_id,
            num_chunks=self.num_chunks,
            rank=0 if self.replicated_layout else self.config.parallel.rank,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
        )
        try:
            return _Copier(kv_caches, self.blocks_per_chunk, region)
        except Exception:
            region.cleanup()
            raise


class _Copier(OffloadingWorker):  # type: ignore[misc]
    """Copies at once: a job is finished when it was submitted."""

    def __init__(self, kv: CanonicalKVCaches, blocks_per_chunk: int, region: SharedOffloadRegion) -> None:
        if len(kv.group_data_refs) != 1:
            raise ValueError("tiers: this model's KV cache has several groups of layers, which is not supported")
        self._region, self._n = region, blocks_per_chunk
        self._done: list[TransferResult] = []
        self._pairs: list[tuple[np.ndarray, np.ndarray]] = []  # the engine's pages, and the tier's
        for tensor in kv.tensors:
            page = tensor.page_size_bytes
            pages = tensor.tensor.view(torch.int8).view((-1, page)).numpy()
            rows = region.create_next_worker_view(page * blocks_per_chunk).numpy()
            shape, strides = (rows.shape[0], blocks_per_chunk, page), (rows.strides[0], page, 1)
            self._pairs.append((pages, np.lib.stride_tricks.as_strided(rows, shape, strides)))

    @override
    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        return self._copy(job_id, src_spec, dst_spec, stores=True)

    @override
    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        return self._copy(job_id, dst_spec, src_spec, stores=False)

    @override
    def get_finished(self) -> list[TransferResult]:
        results, self._done = self._done, []
        return results

    @override
    def wait(self, job_ids: Iterable[int]) -> None:
        pass

    @override
    def shutdown(self) -> None:
        self._pairs.clear()
        self._region.cleanup()

    def _copy(self, job: int, engine: GPULoadStoreSpec, tier: LoadStoreSpec, *, stores: bool) -> bool:
        began, size = time.monotonic(), 0
        blocks = engine.block_ids
        at = engine.block_indices[0] % self._n + np.arange(len(blocks))  # in the tier's chunks, from the first one on
        chunks, parts = tier.block_ids[at // self._n], at % self._n
        for pages, rows in self._pairs:
            if stores:
                rows[chunks, parts] = pages[blocks]
            else:
                pages[blocks] = rows[chunks, parts]
            size += pages.shape[1] * len(blocks)
        self._done.append(TransferResult(job, True, size, time.monotonic() - began))
        return True
