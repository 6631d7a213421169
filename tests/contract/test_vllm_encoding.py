"""Calls of the adapter when vLLM encodes; the vectors themselves are in acceptance/test_vllm_embeddings.py."""

import asyncio
from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from app.engines.base import EncodeRequest
from app.errors import EngineFailed
from app.ids import RunId

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
REQUEST = EncodeRequest(RunId("r.0"), [[1, 7], [2], [3]], "embed", rank=1)


class Asked:
    """Stands in for AsyncLLM: notes what is asked for, and makes of each input a vector with its first token."""

    def __init__(self, ranks: int = 1, answers: int = 3, size: int = 1) -> None:
        """Sets how many inputs it answers, and the size of their vectors."""
        self.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(data_parallel_size=ranks))
        self.ranks: list[int | None] = []
        self.aborted: list[str] = []
        self._answers, self._size = answers, size

    async def add_request(self, id_: str, prompt: Any, params: Any, data_parallel_rank: int | None, **_: Any) -> Any:
        import torch
        from vllm.outputs import PoolingOutput, PoolingRequestOutput
        from vllm.v1.engine.output_processor import RequestOutputCollector

        self.ranks.append(data_parallel_rank)
        collector = RequestOutputCollector(params.output_kind, id_)
        if len(self.ranks) <= self._answers:
            tokens = prompt["prompt_token_ids"]
            data = torch.full((self._size,), float(tokens[0]))
            collector.put(PoolingRequestOutput(id_, PoolingOutput(data), tokens, 0, finished=True))
        return collector

    async def abort(self, ids: list[str]) -> None:
        self.aborted += ids


async def encoded(asked: Any) -> "array[float]":
    from app.engines.vllm.encoding import vectors

    return array("f", await vectors(asked, REQUEST))


@pytest.mark.parametrize(("ranks", "told"), [(1, None), (2, 1)])
async def test_all_inputs_go_to_the_rank_that_was_chosen(ranks: int, told: int | None) -> None:
    """The rank's load is counted by that choice, too; vLLM takes none where there is one."""
    async_llm = Asked(ranks)
    assert (await encoded(async_llm)).tolist() == [1, 2, 3]
    assert async_llm.ranks == [told] * 3
    assert async_llm.aborted == []


async def test_a_cancelled_request_aborts_all_its_inputs() -> None:
    """Inputs that vLLM has not answered are aborted, too."""
    async_llm = Asked(answers=1)
    encoding = asyncio.ensure_future(encoded(async_llm))
    await asyncio.sleep(0)
    encoding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await encoding
    assert async_llm.aborted == ["r.0-0", "r.0-1", "r.0-2"]


async def test_an_input_that_vllm_aborted_fails_the_request() -> None:
    """Its vector is empty, as vLLM has it."""
    with pytest.raises(EngineFailed, match="without a vector"):
        await encoded(Asked(size=0))
