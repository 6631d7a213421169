"""Checks of engines that a GPU's engines and, in a rehearsal, the mock and TensorRT-LLM's double go through."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from app.engines.base import GenerateRequest, StepOutput
from app.errors import HandoffFailed
from app.ids import RunId
from app.messages.handoff import Rendezvous
from app.messages.job import PartialOutput
from tests.contract.subject import Subject
from tests.gpu.place import Place

STORY = "The lighthouse keeper opened the old door, looked over the grey sea and " * 8
REPEATED = "one two three four five six, " * 12
# Drafts from the prompt, in each engine's own words.
DRAFTS: dict[str, dict[str, Any]] = {
    "vllm": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}},
    "sglang": {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 4},
    "trtllm": {"speculative_config": {"decoding_type": "NGram", "max_draft_len": 3, "max_matching_ngram_size": 2}},
}


def tokens_of(outputs: list[StepOutput], index: int = 0) -> list[int]:
    return [token for output in outputs if output.index == index for token in output.tokens]


async def a_prompt_is_handed_over(place: Place, name: str) -> None:
    """The answer of two engines, one of which takes the prompt's KV from the other, is that of one."""
    async with place.engine(name) as both:
        request = both.request(STORY, max_tokens=12, ignore_eos=True)
        alone = tokens_of(await run(both, request))
    async with place.engine(name, role="prefill") as computes, place.engine(name, role="decode") as decodes:
        outputs = await apart(computes, decodes, request)
        assert any(output.pulled for output in outputs)
        assert tokens_of(outputs) == alone
        several = replace(request, sampling=replace(request.sampling, n=2))
        if name == "trtllm":  # which hands over what one choice has begun with
            with pytest.raises(HandoffFailed):
                await apart(computes, decodes, several)
            outputs = await run(decodes, several)
        else:
            outputs = await apart(computes, decodes, several)
        assert [tokens_of(outputs, index) for index in (0, 1)] == [alone, alone]


async def apart(computes: Subject, decodes: Subject, request: GenerateRequest) -> list[StepOutput]:
    """The outputs of both: of engines that meet while the prompt is computed, or one behind the other."""
    prefiller: Any = computes.engine
    if computes.info.meets_at:
        host, _, port = computes.info.meets_at.rpartition(":")
        waiting = replace(request, id=RunId(f"{request.id}.at-once"), handoff=Rendezvous(host, int(port), 2**62 + 7))
        _, outputs = await asyncio.gather(prefiller.prefill(waiting), run(decodes, waiting))
        return outputs
    prefill_result = await prefiller.prefill(request)
    first = [] if prefill_result.output is None else [prefill_result.output]
    partial_outputs = [PartialOutput(output.tokens, len(output.text)) for output in first]
    behind = replace(request, id=RunId(f"{request.id}.behind"), handoff=prefill_result.handoff, begun=partial_outputs)
    return [*first, *await run(decodes, behind)]


async def run(of: Subject, request: GenerateRequest) -> list[StepOutput]:
    return [output async for output in of.engine.generate(request)]


async def drafts_change_no_answer(place: Place, name: str) -> None:
    async with place.engine(name) as plain:
        plain_tokens = (await plain.answer(REPEATED, max_tokens=40, ignore_eos=True)).tokens
    async with place.engine(name, args=DRAFTS.get(name, {})) as drafting:
        assert (await drafting.answer(REPEATED, max_tokens=40, ignore_eos=True)).tokens == plain_tokens
        stats = drafting.engine.stats()
        if name in ("vllm", "sglang"):  # the others tell nothing of drafts
            assert stats.drafted_tokens >= sum(stats.accepted_tokens) > 0
            assert list(stats.accepted_tokens) == sorted(stats.accepted_tokens, reverse=True)
        sampled_answer = await drafting.answer(REPEATED, max_tokens=40, ignore_eos=True, temperature=1.0, top_k=5)
        assert len(sampled_answer.tokens) == 40


async def a_seed_gives_the_same_answer(place: Place, name: str, **args: Any) -> None:
    async with place.engine(name, args=args) as subject:
        assert subject.info.seeds
        answers = [
            (await subject.answer(STORY, max_tokens=20, temperature=1.0, seed=seed, ignore_eos=True)).tokens
            for seed in (1, 1, 2)
        ]
        assert answers[0] == answers[1] != answers[2]
