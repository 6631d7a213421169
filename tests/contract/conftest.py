"""The engines that the contract is tested on, each loaded once per module."""

import gc
import json
import os
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from app.engines.base import Metered
from app.pools.schema import Pool
from app.runner.engine_factory import create_engine
from app.tokenizing.tokenizer import load_tokenizer
from tests.contract.subject import Subject
from tests.forkserver import forks_of
from tests.shallow import shallow_model
from tests.trtllm.double import installed
from tests.trtllm.model import MOCK

MAX_RUNNING = 4
CONTEXT = 512
TURNED = "model.layers.1.mlp.down_proj.weight"  # the tensor in which `other_weights` differ
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
    children = psutil.Process().children(recursive=True)
    return {child for child in children if "resource_tracker" not in " ".join(child.cmdline())}


def profiling(folder: Path) -> dict[str, dict[str, Any]]:
    """Arguments with which records are short."""
    profiler_config = {"profiler": "torch", "torch_profiler_dir": str(folder), "torch_profiler_with_stack": False}
    quiet = {"SGLANG_PROFILE_WITH_STACK": "false", "SGLANG_PROFILE_RECORD_SHAPES": "false"}
    return {
        "vllm": {"profiler_config": profiler_config},
        "sglang": {"env": {"SGLANG_TORCH_PROFILER_DIR": str(folder), **quiet}},
    }


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profiles")


def loading(engine: str) -> AbstractContextManager[None]:
    """The context that an engine needs here."""
    if engine == "trtllm":
        return installed()
    return forks_of(engine) if engine in _REAL else nullcontext()


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=["mock", "trtllm", "vllm", "sglang"])
async def subject(request: pytest.FixtureRequest, profiles: Path) -> AsyncIterator[Subject]:
    engine = request.param
    with loading(engine):
        async with loaded(make_pool(engine, args=_ARGS[engine] | profiling(profiles).get(engine, {}))) as one:
            yield one
    gc.collect()  # what vLLM leaves to the collector is collected while this suite's warning filters hold


@asynccontextmanager
async def loaded(pool: Pool) -> AsyncIterator[Subject]:
    before = _children()
    engine = create_engine(pool)
    if isinstance(engine, Metered):
        engine.keep_metrics()
    info = await engine.start()
    soon_s = 6.0 if pool.engine in _REAL else 1.0
    yield Subject(pool.engine, engine, info, load_tokenizer(pool.model_dir), _children() - before, soon_s)
    await engine.close()


@pytest.fixture(scope="module")
def other_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shallow model with one layer's output turned round: as large, and it says something else."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path_factory.mktemp("weights")
    source = shallow_model(model_dir())
    weights = load_file(source / "model.safetensors")
    weights[TURNED] = -weights[TURNED]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(json.loads((source / "config.json").read_text())))
    return folder
