"""A machine with a CUDA device, and the engines that are installed there: `make gpu`.

With REHEARSE=1 the checks that need no device run without one, on engines for CPUs.
"""

import gc
import os
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.contract.conftest import CONTEXT, loaded, loading, model_dir, other_weights, profiles, profiling
from tests.contract.subject import Subject
from tests.gpu.place import ON_GPU, Place, installed
from tests.shallow import shallow_model
from tests.vlm import random_vlm

__all__ = ["other_weights", "profiles"]

_SLEEPS: dict[str, dict[str, Any]] = {
    "vllm": {"enable_sleep_mode": True},
    "sglang": {"enable_memory_saver": True, "enable_weights_cpu_backup": True},
}
_ON_CPU: dict[str, dict[str, Any]] = {"vllm": {"kv_cache_memory_bytes": 2**28}, "sglang": {"max_total_tokens": 8192}}


def rehearses() -> bool:
    return os.environ.get("REHEARSE") == "1"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips where there is no device, unless a check that needs none is rehearsed."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available() and (not rehearses() or item.get_closest_marker("cuda")):
        pytest.skip("no CUDA device")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("pipelines")

    def paints(name: str) -> Path:
        from tests.pipelines import make  # with diffusers

        return make(name, folder / name)

    return Place(_ON_CPU if rehearses() else ON_GPU, shallow_model(model_dir()), random_vlm("qwen2_vl"), paints)


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=installed("vllm", "sglang", "trtllm"))
async def subject(request: pytest.FixtureRequest, place: Place, profiles: Path) -> AsyncIterator[Subject]:
    """An engine for the suite that all engines go through."""
    name = request.param
    args = profiling(profiles).get(name, {}) | ({} if rehearses() else _SLEEPS.get(name, {}))
    with loading(name) if rehearses() else nullcontext():
        async with loaded(place.pool(name, max_model_len=CONTEXT, args=args)) as one:
            yield one
    gc.collect()
