"""The common part of all endpoints that make vectors of texts: inputs, jobs for the workers, vectors."""

import asyncio
from collections.abc import Callable, Sequence
from math import hypot
from operator import mul
from typing import Generic, TypeVar

from msgspec.structs import replace

from app.dispatch.asking import Asking
from app.dispatch.generation_base import GenerationBase
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.models.models import Model
from app.errors import RequestError
from app.messages.job import Inputs, Sampling
from app.openai.plan import plan_of
from app.openai.schemas import ModelRequest
from app.openai.vector_answers import TokensRead

A = TypeVar("A")
MOST_INPUTS = 2048  # of one request, as OpenAI has it
# Of one job: enough to fill an engine's step, few enough that many workers share a large request, and that a worker's
# death or an urgent request costs little.
_JOB_INPUTS, _JOB_TOKENS = 64, 8192
_NO_OUTPUT = Sampling(max_tokens=0)
_SHORT = 2**18  # bytes of vectors, in all forms; an answer of more is written in a thread


def tokenized(
    model: Model,
    inputs: Sequence[str | list[int]],
    param: str,
    encode: Callable[[str, str], list[int]] | None = None,
) -> list[list[int]]:
    """`param`: the request's field with the inputs. `encode`: makes token ids of a text and its place; None: the model.

    Raises: RequestError, PromptTooLong.
    """
    encode = encode or model.encode
    token_lists, room = [], model.most_tokens
    for index, item in enumerate(inputs):
        where = f"{param}.{index}" if len(inputs) > 1 else param
        if not item:
            raise RequestError(f"'{where}' is empty.", param=where)
        tokens = encode(item, where) if isinstance(item, str) else item
        model.check_input(tokens, where)
        room -= len(tokens)
        if room < 0:
            raise RequestError(f"'{param}' has more than {model.most_tokens} tokens in all.", param=param)
        token_lists.append(tokens)
    return token_lists


def check_count(inputs: Sequence[object], param: str, most: int = MOST_INPUTS) -> None:
    """Raises: RequestError."""
    if not inputs:
        raise RequestError(f"'{param}' is empty.", param=param)
    if len(inputs) > most:
        raise RequestError(f"'{param}' has {len(inputs)} texts: at most {most} in one request.", param=param)


def encoding_plan(
    asking: Asking,
    body: ModelRequest,
    prefix: str,
    model: Model,
    inputs: Sequence[list[int]],
    *,
    dimensions: int | None = None,
) -> GenerationPlan:
    """`prefix`: of its id."""
    jobs = [inputs[part] for part in job_slices([len(one) for one in inputs])]
    prompts = [[token for one in job for token in one] for job in jobs]
    plan = plan_of(asking, body, prefix, model, prompts, sampling=[_NO_OUTPUT] * len(jobs))
    return replace(plan, inputs=[Inputs([len(one) for one in job], model.task, dimensions) for job in jobs])


def job_slices(lengths: Sequence[int]) -> list[slice]:
    """Slices of the inputs that share a job: in their order, and about as many in each. `lengths`: in tokens."""
    most = -(-len(lengths) // max(1, -(-len(lengths) // _JOB_INPUTS)))
    slices, start, tokens = [], 0, 0
    for end, length in enumerate(lengths):
        if end > start and (end - start >= most or tokens + length > _JOB_TOKENS):
            slices.append(slice(start, end))
            start, tokens = end, 0
        tokens += length
    return [*slices, slice(start, len(lengths))]


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    lengths = hypot(*a) * hypot(*b)
    return sum(map(mul, a, b)) / lengths if lengths else 0.0


class EncodingWriter(Generic[A]):
    """Writes an answer made of vectors; it never streams."""

    def __init__(self, call: GenerationBase) -> None:
        self._call = call
        self._times = 1  # that the answer has each vector

    async def whole(self) -> A:
        """Raises: the error that ended it."""
        await self._call.whole()
        if sum(map(len, self._call.vectors.values())) * self._times <= _SHORT:
            return self.answer()
        return await asyncio.to_thread(self.answer)

    def answer(self) -> A:
        """The answer, of all vectors."""
        raise NotImplementedError

    def raw(self) -> list[bytes]:
        """The vector of each input, in their order: float32, little-endian."""
        vectors = []
        for number, job in enumerate(self._call.plan.inputs):
            data = self._call.vectors[number]
            size = len(data) // len(job.lengths)
            vectors += [data[start : start + size] for start in range(0, len(data), size)]
        return vectors

    def usage(self) -> TokensRead:
        tokens = self._call.prompt_tokens
        return {"prompt_tokens": tokens, "total_tokens": tokens}
