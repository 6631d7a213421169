"""A real SGLang of role `decode`: it computes no prompts, so none can stay with it."""

from typing import Any

import pytest

from app.errors import HandoffFailed
from app.runner.engine_factory import create_engine
from app.tokenizing.tokenizer import load_tokenizer
from tests.contract.conftest import make_pool
from tests.contract.subject import Subject
from tests.forkserver import forks_of

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning", "ignore::UserWarning"
    ),
]


async def test_it_refuses_a_prompt_whose_kv_nobody_brings() -> None:
    """The feature list quotes its own words; ours come first."""
    pool = make_pool("sglang", role="decode")
    with forks_of("sglang"):
        engine: Any = create_engine(pool)
        try:
            subject = Subject("sglang", engine, await engine.start(), load_tokenizer(pool.model_dir), set(), 6.0)
            assert not subject.info.computes
            with pytest.raises(HandoffFailed, match="computes no prompts"):
                await subject.answer("Once upon a time")
            with pytest.raises(ValueError, match="Disaggregated request received without bootstrap room id"):
                await engine._loaded.engine.async_generate(input_ids=subject.encode("Once upon a time"))
        finally:
            await engine.close()
