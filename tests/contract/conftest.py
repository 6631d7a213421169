"""The engines that the contract is tested on, each loaded once per module."""

import gc
import os
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from app.engines import create_engine
from app.pools import Pool
from app.tokenizer import load_tokenizer
from tests.contract.subject import Subject
from tests.forkserver import sglang_forks
from tests.shallow import shallow_model
from tests.trtllm.double import installed
from tests.trtllm.model import MOCK

MAX_RUNNING = 4
CONTEXT = 512
_ARGS: dict[str, dict[str, Any]] = {
    # Slow enough that a request can be caught in the middle, fast enough to wait for.
    "mock": {"speedup": 2.0, "answer_tokens": 8, "total_blocks": 256},
    "vllm": {"kv_cache_memory_bytes": 2**29},
    "trtllm": {"env": {MOCK: '{"speedup": 2.0, "answer_tokens": 8, "total_blocks": 256}'}},
    "sglang": {"max_total_tokens": 8192},
}
_REAL = ("vllm", "sglang")  # engines that load a model


def model_dir() -> Path:
    """The real model's directory. Fails, rather than skips: the suite says nothing about vLLM without it."""
    path = Path(os.environ.get("XYLEM_TEST_MODEL", ".xylem/models/SmolLM2-135M-Instruct"))
    if not (path / "model.safetensors").is_file():
        pytest.fail(f"no model at {path.absolute()}: run `make test`, or point XYLEM_TEST_MODEL to one")
    return path


def make_pool(engine: str, **changes: Any) -> Pool:
    settings = {
        "model": "test",
        "engine": engine,
        "path": shallow_model(model_dir()) if engine in _REAL else None,
        "max_running": MAX_RUNNING,
        "max_model_len": CONTEXT,
        "args": _ARGS[engine],
    }
    return Pool.model_validate(settings | changes)


def _children() -> set[psutil.Process]:
    """Multiprocessing's resource tracker stays with the parent, so it doesn't count."""
    found = psutil.Process().children(recursive=True)
    return {child for child in found if "resource_tracker" not in " ".join(child.cmdline())}


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=["mock", "trtllm", "vllm", "sglang"])
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    pool = make_pool(request.param)
    around = {"trtllm": installed, "sglang": sglang_forks}.get(request.param, nullcontext)
    with around():
        before = _children()
        engine = create_engine(pool)
        info = await engine.start()
        soon_s = 6.0 if request.param in _REAL else 1.0
        yield Subject(request.param, engine, info, load_tokenizer(pool.model_dir), _children() - before, soon_s)
        await engine.close()
    del engine
    gc.collect()  # what vLLM leaves to the collector is collected while this suite's warning filters hold
