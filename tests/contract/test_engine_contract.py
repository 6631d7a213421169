"""Promises of every engine, tested over every engine that runs here.

One file has all of it, since a real engine takes most of a minute to load.
"""

import asyncio
import itertools
import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from functools import partial

import psutil
import pytest
from msgspec.structs import replace

from app.engines.base import EngineStats, Metered
from app.errors import EngineFailed, PromptTooLong, RequestError
from app.ids import RequestId
from app.kv.blocks import prompt_hashes
from app.messages.job import Grammar, PartialOutput
from tests.contract.beam_cases import *  # noqa: F403 (it has tests only, on the same engines)
from tests.contract.conftest import CONTEXT, MAX_RUNNING
from tests.contract.dialect_cases import *  # noqa: F403 (the same)
from tests.contract.probe_cases import *  # noqa: F403 (it has tests only, on the same engines)
from tests.contract.state_cases import *  # noqa: F403 (the same)
from tests.contract.subject import Answer, Subject
from tests.stack import wait_until
from workers.library_metrics import engine_metrics

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),  # the first test of an engine loads it
    # The engines and what they import use what torch and Python have deprecated, leave ZeroMQ contexts to the
    # collector, and warn of what a CPU lacks.
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning", "ignore::UserWarning"
    ),
]

STORY = "The lighthouse keeper opened the old door, looked over the grey sea and"
TALE = "Tell me a story about a fox."
_unique = itertools.count()


def unique_prompt(subject: Subject, tokens: int) -> list[int]:
    """A prompt that no test has used before, from its first block on."""
    text = f"Entry {next(_unique)} of the log. " + STORY * 60
    return subject.encode(text)[:tokens]


def idle(stats: EngineStats) -> bool:
    return stats.running == stats.waiting == stats.used_blocks == 0


async def test_an_answer_arrives_in_steps_and_ends_once(subject: Subject) -> None:
    """Streaming means a step output per token, of which the last alone has a finish reason."""
    answer = await subject.answer(STORY)
    assert len(answer.outputs) > 1
    assert [output.finish for output in answer.outputs[:-1]] == [None] * (len(answer.outputs) - 1)
    assert answer.finish in ("stop", "length")


async def test_max_tokens_ends_with_length(subject: Subject) -> None:
    """The token limit is exact."""
    answer = await subject.answer(STORY, max_tokens=5, ignore_eos=True)
    assert (len(answer.tokens), answer.finish, answer.stop) == (5, "length", None)


def decoded(subject: Subject, prompt: list[int], tokens: list[int]) -> str:
    """The text of tokens behind a prompt."""
    return subject.tokenizer.decode(prompt + tokens)[len(subject.tokenizer.decode(prompt)) :]


@pytest.mark.parametrize("prompt", [STORY, "Grüße aus 東京 🗼 und", "emoji: 😀 😃 😄 😁 😆 😅"])
async def test_the_text_is_the_decoded_tokens(subject: Subject, prompt: str) -> None:
    """Characters of several tokens come out whole, and nothing is lost between steps."""
    ids = subject.encode(prompt)
    answer = await subject.answer(ids, max_tokens=12, ignore_eos=True)
    # A last character may be cut off by max_tokens.
    assert answer.text == decoded(subject, ids, answer.tokens).rstrip("\ufffd")


@pytest.mark.parametrize("include", [False, True])
async def test_a_stop_string_across_tokens_ends_the_text(subject: Subject, include: bool) -> None:
    """Stop strings are found in the text, wherever tokens begin; nothing of one leaks out before."""
    plain = await subject.answer(STORY, ignore_eos=True)
    border = len("".join(output.text for output in plain.outputs[:4]))
    stop = plain.text[border - 2 : border + 2]
    end = plain.text.index(stop)
    answer = await subject.answer(STORY, ignore_eos=True, stop=("never said", stop), include_stop=include)
    assert answer.text == plain.text[: end + len(stop) * include]
    assert (answer.finish, answer.stop) == ("stop", stop)


async def test_text_held_back_for_a_stop_string_comes_at_the_end(subject: Subject) -> None:
    """A stop string that is never completed costs no text."""
    plain = await subject.answer(STORY, ignore_eos=True)
    answer = await subject.answer(STORY, ignore_eos=True, stop=(plain.text[-3:] + "?!never",))
    assert (answer.text, answer.finish) == (plain.text, "length")


@pytest.mark.parametrize("include", [False, True])
async def test_a_stop_token_ends_the_answer(subject: Subject, include: bool) -> None:
    """The token is reported, its text only when asked for."""
    plain = await subject.answer(STORY, ignore_eos=True)
    token = plain.tokens[3]
    end = plain.tokens.index(token)
    answer = await subject.answer(STORY, ignore_eos=True, stop_token_ids=(token,), include_stop=include)
    assert answer.tokens == plain.tokens[: end + 1]
    assert (answer.finish, answer.stop) == ("stop", token)
    assert answer.text == decoded(subject, subject.encode(STORY), plain.tokens[: end + include])


async def test_eos_ends_the_answer_without_a_trace_in_the_text(subject: Subject) -> None:
    """An answer that is over says so with `stop`, and no special token shows."""
    eos = subject.tokenizer.eos_id
    answer = await subject.answer(STORY, max_tokens=64, min_tokens=4, logit_bias={eos: 100.0})
    assert (len(answer.tokens), answer.finish, answer.stop) == (5, "stop", None)
    assert answer.tokens[-1] == eos
    assert answer.text
    assert "<|" not in answer.text


async def test_ignore_eos_goes_on_to_max_tokens(subject: Subject) -> None:
    """Benchmarks need answers of a known length."""
    answer = await subject.answer(subject.chat(TALE), max_tokens=20, ignore_eos=True)
    assert (len(answer.tokens), answer.finish) == (20, "length")


async def test_min_tokens_puts_off_eos_and_stops(subject: Subject) -> None:
    """No EOS, stop token or stop string ends an answer before min_tokens."""
    eos, bias = subject.tokenizer.eos_id, {"logit_bias": {subject.tokenizer.eos_id: 100.0}}
    plain = await subject.answer(STORY, ignore_eos=True)
    later = await subject.answer(STORY, max_tokens=24, min_tokens=16, stop=(plain.text[:4],), **bias)
    assert later.tokens.index(eos) == len(later.tokens) - 1 >= 15
    stopped_answer = await subject.answer(STORY, max_tokens=24, min_tokens=6, stop=tuple(plain.text), ignore_eos=True)
    assert (len(stopped_answer.tokens), stopped_answer.finish) == (7, "stop")
    banned_answer = await subject.answer(STORY, max_tokens=6, min_tokens=6, stop_token_ids=(plain.tokens[0],))
    assert len(banned_answer.tokens) == 6
    assert plain.tokens[0] not in banned_answer.tokens


async def test_n_choices_each_finish_once(subject: Subject) -> None:
    """Choices of one request are told apart by their index, and sampled apart."""
    choices = await subject.choices(STORY, n=3, temperature=1.0, ignore_eos=True)
    assert len(choices) == 3
    assert [len(choice.tokens) for choice in choices] == [8, 8, 8]
    assert [sum(output.finish is not None for output in choice.outputs) for choice in choices] == [1, 1, 1]
    assert len({tuple(choice.tokens) for choice in choices}) > 1


async def test_the_same_seed_gives_the_same_tokens_or_is_refused(subject: Subject) -> None:
    """A seed makes sampling repeatable, another one makes another answer; an engine that can't says so."""
    settings = {"temperature": 1.0, "ignore_eos": True, "max_tokens": 12}
    if not subject.info.seeds:
        with pytest.raises(RequestError, match="seed"):
            await subject.answer(STORY, seed=7, **settings)
        return
    first, again, other = [await subject.answer(STORY, seed=seed, **settings) for seed in (7, 7, 8)]
    assert first.tokens == again.tokens
    assert first.tokens != other.tokens


async def test_greedy_ignores_the_seed(subject: Subject) -> None:
    """Temperature 0 leaves nothing to draw."""
    first, other = [await subject.answer(STORY, seed=seed) for seed in (7, 8)]
    assert first.tokens == other.tokens


async def test_without_a_seed_answers_vary(subject: Subject) -> None:
    """Requests that name no seed don't share one."""
    answers = [await subject.answer(STORY, temperature=1.5, ignore_eos=True) for _ in range(3)]
    assert len({tuple(answer.tokens) for answer in answers}) > 1


@pytest.mark.parametrize("cut", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
async def test_cutting_the_distribution_to_one_token_is_greedy(subject: Subject, cut: dict[str, float]) -> None:
    """top_k, top_p and min_p act on the distribution."""
    greedy = await subject.answer(STORY, ignore_eos=True)
    assert (await subject.answer(STORY, temperature=1.0, ignore_eos=True, **cut)).tokens == greedy.tokens


@pytest.mark.parametrize("penalty", [{"repetition_penalty": 2.0}, {"frequency_penalty": 2.0}])
async def test_penalties_drive_out_repeated_tokens(subject: Subject, penalty: dict[str, float]) -> None:
    """A token that is forced by its bias gives way to the second one once it has been said."""
    first, second = subject.encode(" keeper")[0], subject.encode(" door")[0]
    # SGLang's repetition penalty is of the model's own logit, before biases.
    less = 90.0 if subject.name == "sglang" else 70.0
    settings = {"max_tokens": 32, "logit_bias": {first: 100.0, second: less}, "ignore_eos": True}
    assert set((await subject.answer("One two three", **settings)).tokens) == {first}
    assert second in (await subject.answer("One two three", **settings, **penalty)).tokens


async def test_presence_penalty_is_taken(subject: Subject) -> None:
    """A penalty within its range is no reason to refuse."""
    assert len((await subject.answer(STORY, presence_penalty=-2.0, ignore_eos=True)).tokens) == 8


async def test_a_bias_forces_and_bans_tokens(subject: Subject) -> None:
    """+100 makes a token certain, -100 impossible."""
    plain = await subject.answer(STORY, ignore_eos=True)
    token = subject.encode(" door")[0]
    forced_answer = await subject.answer(STORY, logit_bias={token: 100.0}, ignore_eos=True)
    assert forced_answer.tokens == [token] * 8
    banned_answer = await subject.answer(STORY, logit_bias={plain.tokens[0]: -100.0}, ignore_eos=True)
    assert plain.tokens[0] not in banned_answer.tokens


@pytest.mark.parametrize("top", [0, 1, 5])
async def test_logprobs_come_one_per_token_with_sorted_alternatives(subject: Subject, top: int) -> None:
    """Greedy takes the likeliest token, so it leads its alternatives with its own logprob."""
    answer = await subject.answer(STORY, logprobs=top, max_tokens=4, ignore_eos=True)
    assert len(answer.tokens) == 4
    for output in answer.outputs:
        assert output.logprobs is not None
        assert [item.token_id for item in output.logprobs] == output.tokens
        for item in output.logprobs:
            assert item.logprob <= 0
            assert len(item.top) == top
            assert [entry[2] for entry in item.top] == sorted((entry[2] for entry in item.top), reverse=True)
            assert [(item.token, item.token_id, item.logprob)][:top] == list(item.top[:1])


async def test_no_logprobs_unless_asked_for(subject: Subject) -> None:
    """Logprobs cost time, so nobody gets them by accident."""
    answer = await subject.answer(STORY)
    assert answer.tokens
    assert all(output.logprobs is None and output.prompt_logprobs is None for output in answer.outputs)


async def test_prompt_logprobs_come_first_and_cover_the_prompt(subject: Subject) -> None:
    """One per prompt token, none for the first; also when the prompt's KV is cached."""
    prompt = unique_prompt(subject, 80)
    await subject.answer(prompt, max_tokens=1)
    answer = await subject.answer(prompt, max_tokens=3, prompt_logprobs=2, ignore_eos=True)
    entries = answer.outputs[0].prompt_logprobs
    assert entries is not None
    assert entries[0] is None
    assert [entry.token_id for entry in entries if entry] == prompt[1:]
    assert all(entry.logprob <= 0 and len(entry.top) == 2 for entry in entries if entry)
    for entry in entries[1:]:  # an engine that doesn't know a rank says 0
        assert entry is not None
        assert entry.rank == 0 or (entry.rank <= 2) == (entry.token_id in [token for _, token, _ in entry.top])
    assert all(output.prompt_logprobs is None for output in answer.outputs[1:])


async def test_joined_names_of_tokens_are_the_text_also_of_a_character_of_several(subject: Subject) -> None:
    """A token that ends no character has no name, and the one that ends it has the whole."""
    text = "So 😀🎉, and 日本 again"
    answer = await subject.answer(subject.encode(text), max_tokens=1, prompt_logprobs=1, ignore_eos=True)
    entries = answer.outputs[0].prompt_logprobs
    assert entries is not None
    names = [entry.token for entry in entries if entry]
    assert text.endswith("".join(names))
    assert {"🎉", "😀"} & {*names}  # one of them may come with the space before it
    assert len("".join(names)) >= len(text) - 2


async def test_a_known_prefix_is_cached(subject: Subject) -> None:
    """The second time, whole blocks come from the cache, but never the whole prompt."""
    size = subject.info.block_size
    prompt = unique_prompt(subject, 4 * size)
    before = subject.engine.stats().prefill_tokens
    first = await subject.answer(prompt, max_tokens=2)
    between = subject.engine.stats().prefill_tokens
    second = await subject.answer(prompt, max_tokens=2)
    after = subject.engine.stats().prefill_tokens
    assert first.cached_tokens == 0
    assert second.cached_tokens == 3 * size
    assert (between - before, after - between) == (4 * size, size)
    assert first.tokens == second.tokens


async def test_what_was_generated_is_cached(subject: Subject) -> None:
    """A conversation's next turn finds the answer of the last one."""
    size = subject.info.block_size
    prompt = unique_prompt(subject, size)
    answer = await subject.answer(prompt, max_tokens=size + 2, ignore_eos=True)
    assert (await subject.answer(prompt + answer.tokens, max_tokens=1)).cached_tokens == 2 * size


async def test_kv_events_tell_what_is_cached_until_it_is_cleared(subject: Subject) -> None:
    """The events tell it as routing looks for it, and apart by salt."""
    size = subject.info.block_size
    prompt = unique_prompt(subject, 3 * size + 1)
    expected_blocks = {prompt_hashes(prompt, size, salt)[8 * i :][:8] for salt in (None, "salt") for i in range(3)}
    for salt in (None, "salt"):
        request = replace(subject.request(prompt, max_tokens=1), cache_salt=salt)
        assert [output.cached_tokens async for output in subject.engine.generate(request)] == [0]
    ledger = await subject.ledger_becomes(lambda blocks: blocks >= expected_blocks)
    assert (len(expected_blocks), ledger.unknown) == (6, 0)
    if subject.name != "trtllm":  # which has no call to clear it
        await subject.clear()
        await subject.answer(".", max_tokens=1)  # vLLM tells of it in its next step
        await subject.ledger_becomes(lambda blocks: not blocks & expected_blocks)


async def test_steps_are_measured(subject: Subject) -> None:
    """A step takes more than nothing, and less than an answer of many steps in the same run.

    Other work on the machine may hide for a while what a request adds to a step.
    """
    began = time.monotonic()
    for _ in range(15):
        for together in (1, MAX_RUNNING, 2):
            prompts = [f"{i} {STORY}" for i in range(together)]
            await asyncio.gather(*(subject.answer(prompt, max_tokens=24, ignore_eos=True) for prompt in prompts))
        stats = subject.engine.stats()
        if stats.step_s:
            break
    assert 0 < stats.step_s + stats.request_step_s < (time.monotonic() - began) / 3


async def _caught_in_the_middle(subject: Subject) -> None:
    """Waits for what must be true soon after a request was ended early: long before it would have ended by itself."""
    await subject.stats_become(idle, within_s=subject.soon_s)
    if subject.name != "trtllm":  # which has no such call
        await subject.clear()


@pytest.mark.parametrize("n", [1, 2])
async def test_abort_ends_the_stream_and_frees_the_blocks(subject: Subject, n: int) -> None:
    """The stream doesn't go on, and soon nothing holds a block."""
    request = subject.request(STORY, max_tokens=400, ignore_eos=True, n=n, temperature=1.0)
    stream = subject.engine.generate(request)
    await anext(stream)
    assert subject.engine.stats().used_blocks > 0
    await subject.engine.abort(request.id)
    assert {output.finish async for output in stream} <= {None, "abort"}
    await _caught_in_the_middle(subject)


async def test_closing_the_generator_aborts(subject: Subject) -> None:
    """A reader that stops listening need not say more."""
    stream = subject.stream(STORY, max_tokens=400, ignore_eos=True)
    await anext(stream)
    await stream.aclose()
    await _caught_in_the_middle(subject)


async def test_cancelling_the_consumer_aborts(subject: Subject) -> None:
    """A task that is cancelled while it waits for the next step takes its request with it."""
    task = asyncio.create_task(subject.answer(STORY, max_tokens=400, ignore_eos=True))
    await subject.stats_become(lambda stats: stats.used_blocks > 0, within_s=30)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await _caught_in_the_middle(subject)


async def test_aborting_a_waiting_request_ends_it(subject: Subject) -> None:
    """A request that never got a seat can be taken back too."""
    busy = [subject.stream(STORY, max_tokens=400, ignore_eos=True) for _ in range(MAX_RUNNING)]
    for stream in busy:
        await anext(stream)
    request = subject.request(STORY, max_tokens=400, ignore_eos=True)
    waiting = asyncio.create_task(_drain(subject, request))
    await subject.stats_become(lambda stats: stats.waiting == 1, within_s=30)
    await subject.engine.abort(request.id)
    assert set(await asyncio.wait_for(waiting, subject.soon_s)) <= {"abort"}
    for stream in busy:
        await stream.aclose()
    await subject.stats_become(idle, within_s=subject.soon_s)


async def _drain(subject: Subject, request: object) -> list[str | None]:
    return [output.finish async for output in subject.engine.generate(request)]  # type: ignore[arg-type]


async def test_an_abort_is_of_one_request_however_the_others_are_called(subject: Subject) -> None:
    """The id of another request may begin with that of the aborted one."""
    short = subject.request(STORY, max_tokens=400, ignore_eos=True)
    long = replace(subject.request(STORY, max_tokens=24, ignore_eos=True), id=RequestId(f"{short.id}0"))
    stream, other = subject.engine.generate(short), subject.engine.generate(long)
    await anext(stream)
    await anext(other)
    await subject.engine.abort(short.id)
    assert {output.finish async for output in stream} <= {None, "abort"}
    assert [output.finish async for output in other][-1] == "length"


async def test_aborting_an_unknown_request_is_ignored(subject: Subject) -> None:
    """An abort may cross the request's end on the way."""
    await subject.engine.abort(RequestId("nobody"))
    assert [output async for output in subject.stream(STORY, max_tokens=2)]


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -1.0}, {"temperature": 3.0}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_k": -7}, {"min_p": 2.0},
        {"presence_penalty": 3.0}, {"frequency_penalty": -3.0}, {"repetition_penalty": 0.0},
        {"max_tokens": 0}, {"min_tokens": -1}, {"min_tokens": 9}, {"n": 0}, {"stop": ("",)},
        {"logprobs": -2}, {"logprobs": 10_000}, {"prompt_logprobs": -2}, {"prompt_logprobs": 10_000},
        {"logit_bias": {10**7: 1.0}}, {"stop_token_ids": (10**7,)}, {"stop_token_ids": (-1,)},
    ],
    ids=str,
)  # fmt: skip
async def test_a_bad_parameter_is_refused(subject: Subject, bad: dict[str, object]) -> None:
    """A parameter out of range is the request's fault, and is said so before any token."""
    with pytest.raises(RequestError):
        await subject.answer(STORY, **bad)


@pytest.mark.parametrize("prompt", [[], [10**7]], ids=["empty", "unknown token"])
async def test_a_bad_prompt_is_refused(subject: Subject, prompt: list[int]) -> None:
    """The engine doesn't guess what a broken prompt meant."""
    with pytest.raises(RequestError):
        await subject.answer(prompt)


async def test_a_prompt_that_leaves_no_room_is_refused(subject: Subject) -> None:
    """The prompt and at least one token must fit."""
    with pytest.raises(PromptTooLong, match=str(CONTEXT)):
        await subject.answer(unique_prompt(subject, CONTEXT))


async def test_the_context_ends_an_answer_with_length(subject: Subject) -> None:
    """An answer may ask for more than there is room for; it gets what there is."""
    answer = await subject.answer(unique_prompt(subject, CONTEXT - 3), max_tokens=50, ignore_eos=True)
    assert (len(answer.tokens), answer.finish) == (3, "length")


async def test_an_id_in_use_is_refused(subject: Subject) -> None:
    """Two requests of one id could not be aborted apart."""
    request = subject.request(STORY, max_tokens=400, ignore_eos=True)
    stream = subject.engine.generate(request)
    await anext(stream)
    with pytest.raises(RequestError, match=request.id):
        await anext(subject.engine.generate(request))
    await stream.aclose()
    assert (await _drain(subject, subject.request(STORY)))[-1] is not None


async def test_concurrent_requests_share_steps(subject: Subject) -> None:
    """Requests that run together all make progress before any of them ends."""
    order: list[int] = []  # whose token came when

    async def run(index: int) -> None:
        async for output in subject.stream(f"{index} {STORY}", max_tokens=16, ignore_eos=True):
            order.extend(index for _ in output.tokens)

    await asyncio.gather(*map(run, range(MAX_RUNNING)))
    first_end = min(len(order) - order[::-1].index(index) for index in range(MAX_RUNNING))
    assert set(order[: first_end - 1]) == set(range(MAX_RUNNING))


async def test_more_requests_than_seats_wait_and_are_all_served(subject: Subject) -> None:
    """The engine never runs more than it says, and forgets nobody."""
    tasks = [
        asyncio.create_task(subject.answer(f"{i} {STORY}", max_tokens=40, ignore_eos=True))
        for i in range(2 * MAX_RUNNING)
    ]
    full = await subject.stats_become(lambda stats: stats.running == MAX_RUNNING, within_s=30)
    assert full.waiting == MAX_RUNNING
    answers: list[Answer] = await asyncio.gather(*tasks)
    assert [len(answer.tokens) for answer in answers] == [40] * len(answers)


async def test_a_lower_priority_number_is_served_first(subject: Subject) -> None:
    """An urgent request overtakes those that wait, once the seats are taken."""
    start_order: list[str] = []

    async def run(name: str, priority: int) -> None:
        stream = subject.stream(f"{name} {STORY}", max_tokens=40, ignore_eos=True, priority=priority)
        async for output in stream:
            if output.tokens:
                start_order.append(name)
                break
        async for _ in stream:
            pass

    busy = [asyncio.create_task(run(f"busy{i}", 0)) for i in range(MAX_RUNNING)]
    await subject.stats_become(lambda stats: stats.running == MAX_RUNNING, within_s=30)
    patient = asyncio.create_task(run("patient", 5))
    await subject.stats_become(lambda stats: stats.waiting == 1, within_s=30)
    urgent = asyncio.create_task(run("urgent", -5))
    await asyncio.gather(*busy, patient, urgent)
    assert start_order.index("urgent") < start_order.index("patient")


async def test_stats_return_to_zero(subject: Subject) -> None:
    """Nothing is held when nothing runs: cached blocks count as free."""
    await subject.answer(unique_prompt(subject, 100))
    await subject.stats_become(idle, within_s=subject.soon_s)
    assert subject.engine.stats().prefill_tokens > 0


async def test_the_engine_tells_its_limits(subject: Subject) -> None:
    """The configured limits are the loaded ones."""
    assert (subject.info.block_size, subject.info.max_running, subject.info.max_model_len) == (32, MAX_RUNNING, CONTEXT)
    assert subject.info.total_blocks * subject.info.block_size >= CONTEXT


# An answer that another engine began goes on here, behind what is out.
def out(choice: Answer, steps: int, *, finished: bool = False) -> PartialOutput:
    """The part of a choice that is out after so many steps."""
    outputs = choice.outputs[:steps]
    return PartialOutput([t for o in outputs for t in o.tokens], sum(len(o.text) for o in outputs), finished)


async def stepwise(subject: Subject, *begun: PartialOutput, **settings: object) -> Answer:
    """An answer, or its rest, in steps of one token: vLLM gives two as one to a consumer that is behind."""
    while True:
        whole = (await go_on(subject, [*begun], **settings))[0]
        if all(len(output.tokens) <= 1 for output in whole.outputs):
            return whole


async def go_on(subject: Subject, begun: list[PartialOutput], **settings: object) -> dict[int, Answer]:
    request = replace(subject.request(subject.chat(TALE), **settings), begun=begun)
    answers: dict[int, Answer] = {}
    async for output in subject.engine.generate(request):
        answers.setdefault(output.index, Answer()).outputs.append(output)
    return answers


@pytest.mark.parametrize("steps", [1, 7, 20])
async def test_a_greedy_answer_is_the_same_whoever_goes_on(subject: Subject, steps: int) -> None:
    """No token and no character is missing or comes twice, and the usage adds up."""
    settings = {"max_tokens": 24, "ignore_eos": True}
    whole = await stepwise(subject, **settings)
    part = out(whole, steps)
    rest = (await go_on(subject, [part], **settings))[0]
    assert part.tokens + rest.tokens == whole.tokens
    assert whole.text[: part.text_len] + rest.text == whole.text
    assert (rest.finish, rest.stop) == (whole.finish, whole.stop)
    assert rest.cached_tokens <= len(subject.chat(TALE))


@pytest.mark.parametrize("missing", [1, 2, 3])
async def test_an_answer_cut_within_a_character_goes_on_there_and_does_not_repeat_its_prompt(
    subject: Subject, missing: int
) -> None:
    sign = subject.encode("Signs: \N{CUNEIFORM SIGN A} \N{EGYPTIAN HIEROGLYPH A001}")
    assert len(sign) > 8, "each of the last characters has several tokens"
    first_tokens = sign[:-missing]
    part = PartialOutput(first_tokens, len(subject.tokenizer.decode(first_tokens).rstrip("\ufffd")))
    one_of_all = {"logit_bias": {sign[0]: 0.01}}  # the mock's own answers have whole characters only
    rest = (await go_on(subject, [part], max_tokens=24, ignore_eos=True, **one_of_all))[0]
    text = subject.tokenizer.decode([*first_tokens, *rest.tokens])
    assert rest.text.rstrip("\ufffd") == text[part.text_len :].rstrip("\ufffd")


async def test_a_prompt_that_ends_within_a_character_is_not_repeated(subject: Subject) -> None:
    """Clients may send tokens."""
    prompt = subject.encode("The old signs: \N{CUNEIFORM SIGN A}")[:-1]
    settings = {"max_tokens": 6, "ignore_eos": True, "logit_bias": {prompt[0]: 0.01}}
    answer = await subject.answer(prompt, **settings)
    assert "old signs" not in answer.text
    expected_text = subject.tokenizer.decode([*prompt, *answer.tokens])[len("The old signs: ") :]
    assert answer.text.rstrip("\ufffd") == expected_text.rstrip("\ufffd")


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("before", [1, 2, 3])
async def test_a_stop_string_across_the_border_is_found(subject: Subject, before: int, include: bool) -> None:
    """Its beginning was held back when the answer was taken over, or is out where stops are included."""
    settings = {"max_tokens": 24, "ignore_eos": True, "frequency_penalty": 2.0}  # no text stands there twice
    plain = await stepwise(subject, **settings)
    border = len("".join(o.text for o in plain.outputs[:12]))
    settings |= {"stop": (plain.text[border - before : border + 3],), "include_stop": include}
    whole = await stepwise(subject, **settings)
    assert whole.finish == "stop"
    part = out(whole, 12)
    rest = await stepwise(subject, part, **settings)
    assert part.tokens + rest.tokens == whole.tokens
    assert whole.text[: part.text_len] + rest.text == whole.text
    assert (rest.finish, rest.stop) == ("stop", whole.stop)


async def test_special_tokens_are_text_where_they_are_asked_for(subject: Subject) -> None:
    """The same holds for an answer that goes on: the markers of calls are special tokens of many models."""
    token = subject.tokenizer.raw.token_to_id("<|im_start|>")
    settings = {"max_tokens": 4, "logit_bias": {token: 100.0}}
    assert (await stepwise(subject, **settings)).text == ""
    whole = await stepwise(subject, special_tokens=True, **settings)
    assert whole.text == "<|im_start|>" * 4
    part = out(whole, 2)
    rest = (await go_on(subject, [part], special_tokens=True, **settings))[0]
    assert whole.text[: part.text_len] + rest.text == whole.text


async def test_of_several_choices_only_the_open_ones_go_on(subject: Subject) -> None:
    """Each behind what is out of it; one of which nothing is out begins."""
    settings = {"max_tokens": 24, "ignore_eos": True}
    whole = await stepwise(subject, **settings)
    parts = [out(whole, 12), out(whole, 24, finished=True), PartialOutput([])]
    rest = await go_on(subject, parts, n=3, temperature=1e-4, **settings)
    assert sorted(rest) == [0, 2]
    assert [len(parts[i].tokens) + len(rest[i].tokens) for i in rest] == [24, 24]
    assert {choice.finish for choice in rest.values()} == {"length"}


async def test_limits_count_what_is_out(subject: Subject) -> None:
    """max_tokens is the whole answer's."""
    rest = (await go_on(subject, [PartialOutput([1000] * 10)], max_tokens=14, ignore_eos=True))[0]
    assert (len(rest.tokens), rest.finish) == (4, "length")


async def test_penalties_count_what_is_out(subject: Subject) -> None:
    """A token that is out a hundred times doesn't come again under a frequency penalty."""
    settings = {"max_tokens": 140, "ignore_eos": True, "frequency_penalty": 1.0}
    plain = await subject.answer(subject.chat(TALE), max_tokens=1)
    favourite = plain.tokens[0]
    rest = (await go_on(subject, [PartialOutput([favourite] * 100)], **settings))[0]
    assert favourite not in rest.tokens


CALL = {
    "type": "tag",
    "begin": "[see(",
    "content": {"type": "json_schema", "json_schema": {"enum": [1, 2]}},
    "end": ")]",
}
CALLS = {
    "type": "tags_with_separator",
    "tags": [CALL],
    "separator": " ",
    "at_least_one": True,
    "stop_after_first": True,
}
OK = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
GRAMMARS = {  # with a pattern that their answers fit; a small model may fill an object with whitespace
    Grammar("json", json.dumps(OK)): r'\{\s*("ok"[\s:a-z]*\}?)?',
    Grammar("regex", r"(very )?(old|new) fox"): r"(very )?(old|new) fox",
    Grammar("choice", '["a red fox", "no\\"thing"]'): 'a red fox|no"thing',
    Grammar("grammar", 'root ::= "SELECT " col\ncol ::= "name" | "age"'): "SELECT (name|age)",
    Grammar("tag", json.dumps({"type": "structural_tag", "format": CALLS})): r"\[see\([12]\)\]",
}


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: grammar.kind)
async def test_a_grammar_goes_on_at_the_token_where_it_was(subject: Subject, grammar: Grammar) -> None:
    """Wherever the answer is cut: the same tokens, to its end."""
    assert grammar.kind in subject.info.grammars
    settings = {"grammar": grammar, "max_tokens": 12}
    whole = await stepwise(subject, **settings)
    assert re.fullmatch(GRAMMARS[grammar], whole.text)
    assert whole.finish == "stop" or grammar.kind == "json"
    assert len(whole.outputs) > 2
    rests = await asyncio.gather(
        *(go_on(subject, [out(whole, steps)], **settings) for steps in range(1, len(whole.outputs)))
    )
    for steps, rest in enumerate(rests, 1):
        assert out(whole, steps).tokens + rest[0].tokens == whole.tokens, steps
        assert whole.text[: out(whole, steps).text_len] + rest[0].text == whole.text, steps
        assert rest[0].finish == whole.finish, steps


async def test_a_grammar_in_lark_is_kept_to(subject: Subject) -> None:
    """The process that tries it makes EBNF of it."""
    from app.engines.xgrammar_process import tried

    lark = Grammar("grammar", 'start: "SELECT " column\ncolumn: "name" | "age"')
    assert re.fullmatch("SELECT (name|age)", (await subject.answer(STORY, grammar=tried(lark), max_tokens=12)).text)


async def test_what_does_not_fit_its_grammar_ends_that_request_only(subject: Subject) -> None:
    grammar = Grammar("regex", "[0-9]{4}")
    with pytest.raises(EngineFailed):
        await go_on(subject, [PartialOutput(subject.encode("fox"), 3)], grammar=grammar)
    assert re.fullmatch("[0-9]{4}", (await subject.answer(STORY, grammar=grammar, max_tokens=12)).text)


async def test_what_is_no_grammar_is_refused(subject: Subject) -> None:
    for grammar in (
        Grammar("regex", "a("),
        Grammar("grammar", 'root ::= "a" nowhere'),
        Grammar("json", '{"type": "x"}'),
    ):
        with pytest.raises(RequestError):
            await subject.answer(STORY, grammar=grammar)


async def test_abort_ends_a_resumed_answer(subject: Subject) -> None:
    """Its blocks are free then."""
    request = subject.request(subject.chat(TALE), max_tokens=400, ignore_eos=True)
    request = replace(request, begun=[PartialOutput([1000] * 20)])
    stream = subject.engine.generate(request)
    await anext(stream)
    await subject.engine.abort(request.id)
    async with asyncio.timeout(60):
        finishes = [o.finish async for o in stream]
    assert [finish for finish in finishes if finish] in ([], ["abort"])
    assert len(finishes) < 100, "besides what was out already"
    await subject.stats_become(idle, within_s=subject.soon_s)


async def test_metrics_of_an_engines_own_count_each_token_once(subject: Subject) -> None:
    """The count is right although engines have several processes. TensorRT-LLM keeps them of its iterations only."""
    if subject.name in ("mock", "trtllm"):
        return
    assert isinstance(subject.engine, Metered)
    before = await asyncio.to_thread(
        settled, partial(tokens_counted, subject.name)
    )  # those of the test before may come
    await subject.answer("Once upon a time", max_tokens=7, ignore_eos=True)
    await asyncio.to_thread(wait_until, lambda: tokens_counted(subject.name) > before, "they are counted")
    await asyncio.sleep(0.5)  # a second count would come as late as the first
    assert tokens_counted(subject.name) == before + 7


def settled(count: Callable[[], float]) -> float:
    """The count, as soon as it stays the same for half a second."""
    before = -1.0
    while before != (before := count()):
        time.sleep(0.5)
    return before


def tokens_counted(engine: str) -> float:
    families = list(engine_metrics())
    assert len({family.name for family in families}) == len(families)
    samples = [sample for family in families for sample in family.samples]
    return sum(sample.value for sample in samples if sample.name == f"{engine}:generation_tokens_total")


async def test_an_engines_processes_sleep_when_idle_and_their_death_is_an_error_and_hurts_nobody_else(
    subject: Subject,
) -> None:
    """Engines with processes of their own burn no core, and nobody waits for the dead. It comes last, as it kills."""
    processes = subject.processes
    bystander = await asyncio.to_thread(subprocess.Popen, ["sleep", "300"])  # a child, and none of the engine's
    if subject.name == "vllm":
        from app.engines.vllm.sockets import socket_folder  # with vLLM, whose warnings are ignored in tests only

        assert os.listdir(socket_folder())  # noqa: PTH208 (a folder of two)
    if subject.name in ("vllm", "sglang"):
        await asyncio.sleep(1.5)  # vLLM's worker spins for a second before it sleeps
        cpu_s = sum(sum(process.cpu_times()[:2]) for process in processes)
        await asyncio.sleep(2)
        assert sum(sum(process.cpu_times()[:2]) for process in processes) - cpu_s < 0.2

        streams = [subject.stream("Once upon a time", max_tokens=400, ignore_eos=True) for _ in range(2)]
        for stream in streams:
            await anext(stream)
        max(processes, key=lambda process: sum(process.cpu_times()[:2])).kill()  # the one that computes
        for stream in streams:
            with pytest.raises(EngineFailed):
                async for _ in stream:
                    pass
        with pytest.raises(EngineFailed):
            await subject.answer("Once upon a time")
    await subject.engine.close()
    with pytest.raises(EngineFailed):
        await subject.answer("Once upon a time")
    # Who lost its parent notices it in a moment.
    _, survivors = await asyncio.to_thread(psutil.wait_procs, processes, 20)
    assert not survivors
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()
