"""Beam search on each engine. `test_engine_contract.py` has loaded the engines and runs this."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pytest

from app.engines.base import StepOutput
from app.messages.job import BeamSearch, Job, Sampling
from app.runner.beam_search import Searching
from tests.contract.subject import Subject
from tests.jobs import job
from tests.shallow import shallow_model

WIDTH, TOKENS = 4, 6
FABLE = "Once upon a time a small fox lived in a"
_ROUNDING = 0.1  # of a whole answer's logprob, where weights have 8 bits


def searched_job(prompt: Sequence[int], **sampling: Any) -> Job:
    fields = {"max_tokens": TOKENS, "ignore_eos": True, "logprobs": 1, "n": WIDTH, "beams": BeamSearch(WIDTH)}
    return job(prompt, sampling=Sampling(**fields | sampling))


async def search(subject: Subject, prompt: Sequence[int], **sampling: Any) -> list[StepOutput]:
    searching = Searching(searched_job(prompt, **sampling), subject.tokenizer, subject.info.max_model_len, "")
    async with aclosing(searching.steps(subject.engine, subject.request([*prompt]))) as steps:
        async for _ in steps:
            pass
    return searching.answers()


def sum_of(answer: StepOutput) -> float:
    return sum(entry.logprob for entry in answer.logprobs or ())


async def test_a_search_finds_the_likeliest_answers(subject: Subject) -> None:
    """The best first, all others; and none is worse than the likeliest token at each place."""
    prompt = subject.encode(FABLE)
    answers = await search(subject, prompt)
    assert [(len(answer.tokens), answer.finish, answer.index) for answer in answers] == [
        (TOKENS, "length", i) for i in range(WIDTH)
    ]
    assert len({tuple(answer.tokens) for answer in answers}) == WIDTH
    assert [sum_of(answer) for answer in answers] == sorted(map(sum_of, answers), reverse=True)
    greedy = await subject.answer(prompt, max_tokens=TOKENS, ignore_eos=True, logprobs=0)
    assert sum_of(answers[0]) >= sum(sum_of(output) for output in greedy.outputs) - _ROUNDING
    assert answers[0].text == subject.tokenizer.decode(prompt + answers[0].tokens)[len(FABLE) :]
    [one] = await search(subject, prompt, n=1, beams=BeamSearch(1))
    assert sum_of(one) == pytest.approx(sum(sum_of(output) for output in greedy.outputs), abs=_ROUNDING)


async def test_tokens_that_stop_an_answer_end_its_beam(subject: Subject) -> None:
    prompt = subject.encode(FABLE)
    token = (await search(subject, prompt))[0].tokens[2]
    best = BeamSearch(WIDTH, length_penalty=-2.0)  # short answers are better
    answers = await search(subject, prompt, stop_token_ids=(token,), beams=best)
    [first, *_] = [answer for answer in answers if answer.finish == "stop"]
    assert (first.tokens[-1], first.stop) == (token, token)
    assert first.tokens.count(token) == 1


async def test_a_search_computes_its_prompt_once(subject: Subject) -> None:
    """Each beam finds what it shares with others in the cache, but for its last block."""
    prompt = subject.encode("The keeper's log of a long winter, in which little happened. " * 20)[:200]
    before = subject.engine.stats().prefill_tokens
    await search(subject, prompt)
    stats = await subject.stats_become(lambda stats: not stats.running, within_s=subject.soon_s)
    assert stats.prefill_tokens - before <= len(prompt) + WIDTH * TOKENS * (subject.info.block_size + TOKENS)


async def test_a_search_that_is_left_leaves_nothing_behind(subject: Subject) -> None:
    """A search may be left in the middle of a step, and between two."""
    prompt = subject.encode(FABLE)
    for in_step in (False, True):
        searching = Searching(searched_job(prompt, max_tokens=200), subject.tokenizer, 400, "")
        steps = searching.steps(subject.engine, subject.request(prompt))
        await anext(steps)
        if in_step:
            task = asyncio.ensure_future(anext(steps))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        await steps.aclose()
        await subject.stats_become(
            lambda stats: stats.running == stats.waiting == stats.used_blocks == 0, within_s=subject.soon_s
        )


async def test_a_search_goes_on_where_it_was_left(subject: Subject) -> None:
    """An aside request gives way between steps."""
    prompt = subject.encode(FABLE)
    whole = await search(subject, prompt)
    searching = Searching(searched_job(prompt), subject.tokenizer, 400, "")
    for _ in range(TOKENS):
        async with aclosing(searching.steps(subject.engine, subject.request(prompt))) as steps:
            await anext(steps)
    answers = searching.answers()
    assert [sum_of(answer) for answer in answers] == pytest.approx([sum_of(one) for one in whole], abs=_ROUNDING)


async def test_answers_of_real_engines_are_as_likely_as_they_say(subject: Subject) -> None:
    """Rounding decides which ones win: the tokens are compared by `make bench NAME=rows`, without rounding."""
    answers = await search(subject, prompt := subject.encode(FABLE))
    if subject.name not in ("vllm", "sglang"):  # the mock's model is known to nobody else
        assert sum_of(answers[0]) < 0
        return
    likelihoods = transformers_likelihoods(prompt, [answer.tokens for answer in answers])
    for answer, theirs in zip(answers, likelihoods, strict=True):
        assert sum_of(answer) == pytest.approx(theirs, abs=_ROUNDING)


def transformers_likelihoods(prompt: list[int], answers: list[list[int]]) -> list[float]:
    """The logprobs of whole answers, from a process of its own: engines change transformers in theirs."""
    question = json.dumps([str(shallow_model()), prompt, answers])
    command = [sys.executable, "-m", "tests.likelihoods"]
    run = subprocess.run(command, input=question, capture_output=True, text=True, check=True)
    likelihoods: list[float] = json.loads(run.stdout.splitlines()[-1])
    return likelihoods
