"""An answer that another engine began goes on here, behind what is out."""

import asyncio

import pytest
from msgspec.structs import replace

from app.messages import PartialOutput
from tests.contract.subject import Answer, Subject

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),  # the first test of an engine loads it
    # vLLM and what it imports use what torch and Python have deprecated, and leave ZeroMQ contexts to the collector.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
]

QUESTION = "Tell me a story about a fox."


def out(choice: Answer, steps: int, *, finished: bool = False) -> PartialOutput:
    """What is out of it after so many steps."""
    outputs = choice.outputs[:steps]
    return PartialOutput([t for o in outputs for t in o.tokens], sum(len(o.text) for o in outputs), finished)


async def go_on(subject: Subject, begun: list[PartialOutput], **settings: object) -> dict[int, Answer]:
    asked = replace(subject.request(subject.chat(QUESTION), **settings), begun=begun)
    found: dict[int, Answer] = {}
    async for output in subject.engine.generate(asked):
        found.setdefault(output.index, Answer()).outputs.append(output)
    return found


@pytest.mark.parametrize("steps", [1, 7, 20])
async def test_a_greedy_answer_is_the_same_whoever_goes_on(subject: Subject, steps: int) -> None:
    """No token and no character is missing or comes twice, and the usage adds up."""
    settings = {"max_tokens": 24, "ignore_eos": True}
    whole = await subject.answer(subject.chat(QUESTION), **settings)
    begun = out(whole, steps)
    rest = (await go_on(subject, [begun], **settings))[0]
    assert begun.tokens + rest.tokens == whole.tokens
    assert whole.text[: begun.text_len] + rest.text == whole.text
    assert (rest.finish, rest.stop) == (whole.finish, whole.stop)
    assert rest.cached_tokens <= len(subject.chat(QUESTION))


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("before", [1, 2, 3])
async def test_a_stop_string_across_the_border_is_found(subject: Subject, before: int, include: bool) -> None:
    """Its beginning was held back when the answer was taken over, or is out where stops are included."""
    settings = {"max_tokens": 24, "ignore_eos": True}
    plain = await subject.answer(subject.chat(QUESTION), **settings)
    border = len("".join(o.text for o in plain.outputs[:12]))
    settings |= {"stop": (plain.text[border - before : border + 3],), "include_stop": include}
    whole = await subject.answer(subject.chat(QUESTION), **settings)
    assert whole.finish == "stop"
    begun = out(whole, 12)
    assert len(begun.tokens) >= 12  # vLLM gives two steps as one to a consumer that is behind
    rest = (await go_on(subject, [begun], **settings))[0]
    assert begun.tokens + rest.tokens == whole.tokens
    assert whole.text[: begun.text_len] + rest.text == whole.text
    assert (rest.finish, rest.stop) == ("stop", whole.stop)


async def test_of_several_choices_only_the_open_ones_go_on(subject: Subject) -> None:
    """Each behind what is out of it; one of which nothing is out begins."""
    settings = {"max_tokens": 24, "ignore_eos": True}
    whole = await subject.answer(subject.chat(QUESTION), **settings)
    begun = [out(whole, 12), out(whole, 24, finished=True), PartialOutput([])]
    rest = await go_on(subject, begun, n=3, temperature=1e-4, seed=1, **settings)
    assert sorted(rest) == [0, 2]
    assert [len(begun[i].tokens) + len(rest[i].tokens) for i in rest] == [24, 24]
    assert {choice.finish for choice in rest.values()} == {"length"}


async def test_limits_count_what_is_out(subject: Subject) -> None:
    """max_tokens is the whole answer's."""
    rest = (await go_on(subject, [PartialOutput([1000] * 10)], max_tokens=14, ignore_eos=True))[0]
    assert (len(rest.tokens), rest.finish) == (4, "length")


async def test_penalties_count_what_is_out(subject: Subject) -> None:
    """A token that is out a hundred times doesn't come again under a frequency penalty."""
    settings = {"max_tokens": 140, "ignore_eos": True, "frequency_penalty": 1.0}
    plain = await subject.answer(subject.chat(QUESTION), max_tokens=1)
    favourite = plain.tokens[0]
    rest = (await go_on(subject, [PartialOutput([favourite] * 100)], **settings))[0]
    assert favourite not in rest.tokens


async def test_abort_ends_a_resumed_answer(subject: Subject) -> None:
    """Its blocks are free then."""
    asked = subject.request(subject.chat(QUESTION), max_tokens=400, ignore_eos=True)
    asked = replace(asked, begun=[PartialOutput([1000] * 20)])
    stream = subject.engine.generate(asked)
    await anext(stream)
    await subject.engine.abort(asked.id)
    async with asyncio.timeout(20):
        assert [o.finish async for o in stream] in ([], ["abort"])
    await subject.stats_become(lambda s: s.used_blocks == 0 and s.running == 0, within_s=5)
