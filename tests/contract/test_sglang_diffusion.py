"""A diffusion language model on SGLang: its answers come block by block, the way that tokens come."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

from app.engines.base import StepOutput
from app.errors import RequestError, SettingsError
from app.kv.blocks import prompt_hashes
from app.messages.job import Grammar, PartialOutput
from app.pools.schema import Pool
from app.runner.engine_factory import create_engine
from app.tokenizing.tokenizer import load_tokenizer
from tests.contract.conftest import loading
from tests.contract.subject import Answer, Subject
from tests.dllm import BLOCK, random_dllm
from tests.shallow import shallow_model

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.media,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]

PROMPT = list(range(100, 110))  # ends in the middle of a block
FREE = {"ignore_eos": True}


def pool(**changes: Any) -> Pool:
    args = {"max_total_tokens": 4096, "dllm_algorithm": "LowConfidence"}
    settings = {"model": "x", "engine": "sglang", "path": random_dllm(), "max_running": 4, "max_model_len": 512}
    return Pool.model_validate(settings | {"block_size": BLOCK, "args": args} | changes)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def subject() -> AsyncIterator[Subject]:
    with loading("sglang"):
        engine = create_engine(pool())
        info = await engine.start()
        yield Subject("sglang", engine, info, load_tokenizer(random_dllm(), None, "file"), set(), 6.0)
        await engine.close()


async def test_an_answer_comes_block_by_block_and_ends_where_it_should(subject: Subject) -> None:
    """The first block has what the prompt leaves of it. Each max_tokens gives that many tokens of the same answer."""
    whole = await subject.answer(PROMPT, max_tokens=18, **FREE)
    assert [len(output.tokens) for output in whole.outputs] == [2, 4, 4, 4, 4]
    assert (whole.finish, whole.text) == ("length", subject.tokenizer.decode(whole.tokens))
    for few in range(1, 8):
        answer = await subject.answer(PROMPT, max_tokens=few, **FREE)
        assert (answer.tokens, answer.finish) == (whole.tokens[:few], "length")
        assert all(output.tokens for output in answer.outputs)


async def test_answers_made_together_are_those_made_alone(subject: Subject) -> None:
    prompts = [list(range(start, start + 7 + start % 4)) for start in range(200, 206)]
    alone = [(await subject.answer(prompt, **FREE)).tokens for prompt in prompts]
    streams = [subject.stream(prompt, **FREE) for prompt in prompts]
    together: list[list[int]] = [[] for _ in prompts]
    live = dict(enumerate(streams))
    while live:
        for number, stream in list(live.items()):
            output: StepOutput | None = await anext(stream, None)
            if output is None:
                del live[number]
            else:
                together[number] += output.tokens
    assert together == alone


async def test_stops_in_the_middle_of_a_block_end_the_answer_there(subject: Subject) -> None:
    whole = await subject.answer(PROMPT, max_tokens=18, **FREE)
    token = whole.tokens[7]
    cut = whole.tokens.index(token) + 1
    answer = await subject.answer(PROMPT, max_tokens=18, stop_token_ids=(token,))
    assert (answer.tokens, answer.finish, answer.stop) == (whole.tokens[:cut], "stop", token)
    word = subject.tokenizer.decode(whole.tokens)[14:18]
    answer = await subject.answer(PROMPT, max_tokens=18, stop=(word,), **FREE)
    assert (answer.text, answer.finish, answer.stop) == (whole.text[: whole.text.index(word)], "stop", word)
    await subject.stats_become(lambda stats: not stats.running and not stats.used_blocks, within_s=subject.soon_s)


async def test_an_answer_goes_on_after_each_of_its_blocks(subject: Subject) -> None:
    """Another worker goes on like this if the first one dies: nothing is given out in the middle of a block."""
    whole = await subject.answer(PROMPT, max_tokens=18, **FREE)
    token_count = 0
    for output in whole.outputs[:-1]:
        token_count += len(output.tokens)
        request = subject.request(PROMPT, max_tokens=18, **FREE)
        part = PartialOutput(whole.tokens[:token_count], len(subject.tokenizer.decode(whole.tokens[:token_count])))
        rest = Answer([step async for step in subject.engine.generate(replace(request, begun=[part]))])
        assert whole.tokens[:token_count] + rest.tokens == whole.tokens
        assert (rest.finish, whole.text.endswith(rest.text)) == ("length", True)


async def test_what_is_cancelled_is_computed_no_more(subject: Subject) -> None:
    request = subject.request(PROMPT, max_tokens=400, **FREE)
    stream = subject.engine.generate(request)
    await anext(stream)
    await subject.engine.abort(request.id)
    assert [output.finish async for output in stream][-1:] == ["abort"]
    await subject.stats_become(lambda stats: not stats.running and not stats.used_blocks, within_s=subject.soon_s)
    assert (await subject.answer(PROMPT, max_tokens=400 // 100, **FREE)).finish == "length"


async def test_what_it_does_not_do_is_refused_by_name(subject: Subject) -> None:
    for param, value in {
        "logprobs": 1, "prompt_logprobs": 1, "min_tokens": 1, "presence_penalty": 1.0, "frequency_penalty": 1.0,
        "repetition_penalty": 1.1, "logit_bias": {5: 1.0},
    }.items():  # fmt: skip
        with pytest.raises(RequestError) as refusal:
            await subject.answer(PROMPT, **{param: value})
        assert refusal.value.param == param
    with pytest.raises(RequestError) as refusal:
        await subject.answer(PROMPT, grammar=Grammar("regex", "[a-z]+"))
    assert refusal.value.param == "response_format"


async def test_each_choice_is_an_answer(subject: Subject) -> None:
    """All are alike, as of any model whose likeliest tokens are taken."""
    whole = await subject.answer(PROMPT, max_tokens=18, **FREE)
    steps = [step async for step in subject.stream(PROMPT, max_tokens=18, n=3, **FREE)]
    choices = [[token for step in steps if step.index == index for token in step.tokens] for index in range(3)]
    assert choices == [whole.tokens] * 3


async def test_nothing_is_drawn(subject: Subject) -> None:
    """Seeds are honoured therefore, and the temperature changes nothing."""
    assert subject.info.seeds
    calm = await subject.answer(PROMPT, **FREE)
    assert (await subject.answer(PROMPT, temperature=1.0, seed=5, **FREE)).tokens == calm.tokens


async def test_the_index_has_the_prompts_blocks(subject: Subject) -> None:
    await subject.clear()
    prompt = list(range(300, 345))
    first = await subject.answer(prompt, **FREE)
    hashes = prompt_hashes(prompt, BLOCK)
    blocks = {hashes[i : i + 8] for i in range(0, len(hashes), 8)}
    assert len(blocks) == 11
    await subject.ledger_becomes(blocks.issubset)
    again = await subject.answer(prompt, **FREE)
    assert (first.cached_tokens, again.cached_tokens, again.tokens) == (0, 44, first.tokens)


async def test_settings_that_it_would_bend_are_refused() -> None:
    changes: dict[str, dict[str, Any]] = {
        "block_size=32: has to be the diffusion model's own, 4": {"block_size": 32},
        "dllm_algorithm='LowConfidence': Unknown diffusion LLM": {"path": shallow_model()},
        "role=decode": {"role": "decode"},
        "enable_lora": {"args": {"dllm_algorithm": "LowConfidence", "enable_lora": True}},
    }
    for why, settings in changes.items():
        with pytest.raises(SettingsError, match=why):
            await create_engine(pool(**settings)).start()
