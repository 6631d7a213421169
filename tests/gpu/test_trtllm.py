"""The real TensorRT-LLM, where it is installed: that the adapter's guesses about it hold.

XYLEM_TEST_MODEL names a small chat model's folder. It was written without the engine, and has not run yet.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from app.engines.base import Disaggregated, Engine, GenerateRequest
from app.ids import RunId
from app.messages.job import Grammar, PartialOutput, Sampling
from app.pools.schema import Pool
from app.runner.engine_factory import create_engine
from app.tokenizing.tokenizer import load_tokenizer
from tests.contract.test_trtllm_contract import replayed

pytestmark = [pytest.mark.timeout(1200), pytest.mark.filterwarnings("ignore")]

MODEL = Path(os.environ.get("XYLEM_TEST_MODEL", ".xylem/models/SmolLM2-135M-Instruct"))
STORY = "The lighthouse keeper opened the old door, looked over the grey sea and " * 8


@asynccontextmanager
async def engine(share: float = 0.6, **settings: Any) -> AsyncIterator[Any]:
    args = {"kv_cache_config": {"free_gpu_memory_fraction": share}}
    new_engine = create_engine(
        Pool(model="m", engine="trtllm", path=MODEL, max_model_len=1024, max_running=4, args=args, **settings)
    )
    try:
        assert (await new_engine.start()).block_size == 32
        yield new_engine
    finally:
        await new_engine.close()


def ask(id_: str, text: str = STORY, **sampling: Any) -> GenerateRequest:
    prompt = load_tokenizer(MODEL).encode(text)
    return GenerateRequest(RunId(id_), prompt, Sampling(**{"max_tokens": 12, "temperature": 0.0} | sampling))


async def answer(made: Engine, request: GenerateRequest) -> tuple[list[int], str]:
    outputs = [output async for output in made.generate(request)]
    return [t for o in outputs for t in o.tokens], "".join(o.text for o in outputs)


async def test_answers_stops_caches_grammars_and_aborts() -> None:
    async with engine() as llm:
        tokens, text = await answer(llm, ask("plain", ignore_eos=True))
        assert len(tokens) == 12
        stop_answer = await answer(llm, ask("token", ignore_eos=True, stop_token_ids=(tokens[3],)))
        assert stop_answer[0] == tokens[: tokens.index(tokens[3]) + 1]
        assert (await answer(llm, ask("string", ignore_eos=True, stop=(text[6:9],))))[1] == text[
            : text.index(text[6:9])
        ]
        later, _ = await answer(llm, ask("min", min_tokens=8, stop_token_ids=(tokens[0],)))
        assert tokens[0] not in later[:8]
        bias = {load_tokenizer(MODEL).encode(" door")[0]: 100.0}
        assert set((await answer(llm, ask("bias", logit_bias=bias, max_tokens=3)))[0]) == set(bias)
        first = await anext(llm.generate(ask("cached", logprobs=2, prompt_logprobs=None)))
        assert first.cached_tokens >= 32
        assert len(first.logprobs[0].top) == 2

        grammar = Grammar("regex", "[0-9]{6}")
        digits, digit_text = await answer(llm, ask("held", grammar=grammar, max_tokens=20))
        assert re.fullmatch("[0-9]{6}", digit_text)
        continuation = replace(ask("rest", grammar=grammar, max_tokens=20), begun=[PartialOutput(digits[:2])])
        assert (await answer(llm, continuation))[0] == digits[2:]

        together = [ask(f"at once {i}", max_tokens=40 * i, ignore_eos=True) for i in (1, 2, 3)]
        await asyncio.gather(*(answer(llm, request) for request in together))
        assert llm.stats().step_s > 0
        stream = llm.generate(ask("long", max_tokens=900, ignore_eos=True))
        await anext(stream)
        await llm.abort(RunId("long"))
        assert [o.finish async for o in stream][-1] == "abort"
        async with asyncio.timeout(10):
            while not await replayed(llm.kv_events()[0]):
                await answer(llm, ask("events", max_tokens=1))


async def test_a_prompt_is_handed_over() -> None:
    async with engine(0.3, role="prefill") as computes, engine(0.3, role="decode") as decodes:
        assert isinstance(computes, Disaggregated)
        request = ask("apart", ignore_eos=True)
        prefill_result = await computes.prefill(request)
        assert prefill_result.output is not None
        partial_outputs = [PartialOutput(prefill_result.output.tokens, len(prefill_result.output.text))]
        rest, _ = await answer(
            decodes, replace(request, id=RunId("behind"), handoff=prefill_result.handoff, begun=partial_outputs)
        )
        whole, _ = await answer(computes, replace(request, id=RunId("whole")))
        assert prefill_result.output.tokens + rest == whole
