"""Sleep that gives an accelerator's memory back, of vLLM and SGLang."""

from pathlib import Path
from typing import Any

import pytest

from app.engines.base import Pauser, Sleeper, Weights
from app.runner.engine_factory import create_engine
from app.tokenizing.tokenizer import load_tokenizer
from tests.contract.conftest import make_pool, model_dir
from tests.contract.subject import Subject
from tests.gpu.place import installed

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.cuda,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
]


def used_bytes() -> int:
    """Bytes of the device's memory that all processes use."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return int(total - free)


ARGS: dict[str, dict[str, Any]] = {
    "vllm": {"enable_sleep_mode": True, "kv_cache_memory_bytes": 2 * 2**30},
    "sglang": {"enable_memory_saver": True, "enable_weights_cpu_backup": True, "mem_fraction_static": 0.5},
}


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("name", installed("vllm", "sglang"))
async def test_a_sleeping_engine_gives_its_memory_back_and_answers_as_before_when_it_wakes(
    name: str, level: int
) -> None:
    pool = make_pool(name, path=Path(model_dir()), args=ARGS[name])
    engine = create_engine(pool)
    info = await engine.start()
    subject = Subject(name, engine, info, load_tokenizer(pool.model_dir), set(), 6.0)
    assert isinstance(engine, Sleeper)
    assert isinstance(engine, Weights)
    assert isinstance(engine, Pauser)
    try:
        tokens_before = (await subject.answer("The sea is")).tokens
        awake = used_bytes()
        await engine.sleep(level, "wait")
        asleep = used_bytes()
        assert awake - asleep > 2 * 2**30  # the KV cache, and the weights
        await engine.wake(["weights"])
        assert asleep < used_bytes() < awake
        if level > 1:
            await engine.update_weights("", None)
        await engine.wake()
        await engine.resume()
        assert (await subject.answer("The sea is")).tokens == tokens_before
        assert used_bytes() > asleep + 2 * 2**30
    finally:
        await engine.close()
