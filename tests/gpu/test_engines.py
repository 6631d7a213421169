"""Features of vLLM and SGLang that a CPU lacks, and KV that goes from one GPU engine to another."""

import pytest

from tests.gpu import cases
from tests.gpu.place import Place, installed

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("name", installed("vllm", "sglang"))
async def test_a_prompt_is_handed_over(place: Place, name: str) -> None:
    """Its KV goes from the memory of one engine to that of another, by NIXL."""
    await cases.a_prompt_is_handed_over(place, name)


@pytest.mark.cuda
@pytest.mark.parametrize("name", installed("vllm", "sglang"))
async def test_drafts_change_no_answer_and_are_counted_also_beside_sampled_ones(place: Place, name: str) -> None:
    await cases.drafts_change_no_answer(place, name)


@pytest.mark.cuda
@pytest.mark.parametrize("name", installed("sglang"))
async def test_a_seed_gives_the_same_answer(place: Place, name: str) -> None:
    await cases.a_seed_gives_the_same_answer(place, name, enable_deterministic_inference=True)
