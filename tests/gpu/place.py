"""The place where a check runs: a machine with a GPU; or, to rehearse it, an engine that needs none."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from app.pools.schema import Pool
from app.runner.engine_factory import create_engine
from app.tokenizing.tokenizer import load_tokenizer
from tests.contract.subject import Subject

MODULES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt_llm"}
# Of one GPU, which engines share while KV is handed over; float32, so that answers are the same token for token.
ON_GPU: dict[str, dict[str, Any]] = {
    "vllm": {"kv_cache_memory_bytes": 2**29, "dtype": "float32", "enforce_eager": True},
    "sglang": {
        "max_total_tokens": 8192, "dtype": "float32", "attention_backend": "triton", "mem_fraction_static": 0.2,
        "disable_cuda_graph": True,
    },
    "trtllm": {"kv_cache_config": {"max_tokens": 8192}},
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    args: Mapping[str, Mapping[str, Any]]  # that each engine needs there
    model: Path | None  # a small one's folder; None: the engine has its own
    sees: Path  # the folder of a model of Qwen2-VL's kind
    paints: Callable[[str], Path]  # the folder of a tiny pipeline: flux or wan

    def pool(self, name: str, **settings: Any) -> Pool:
        args = {**self.args.get(name, {}), **settings.pop("args", {})}
        fields = {"model": "m", "engine": name, "path": self.model, "max_model_len": 1024, "max_running": 4}
        return Pool.model_validate(fields | {"args": args} | settings)

    @asynccontextmanager
    async def engine(self, name: str, **settings: Any) -> AsyncIterator[Subject]:
        """An engine with the pool's `settings`; its `args` are added to the place's."""
        pool = self.pool(name, **settings)
        engine: Any = create_engine(pool)
        try:
            info = await engine.start()
            yield Subject(name, engine, info, load_tokenizer(pool.model_dir), set(), 6.0)
        finally:
            await engine.close()


def installed(*names: str) -> list[Any]:
    """The parameters of a check of these engines: one that isn't installed is skipped by name."""
    return [
        pytest.param(name, marks=pytest.mark.skipif(find_spec(MODULES[name]) is None, reason=f"no {MODULES[name]}"))
        for name in names
    ]
