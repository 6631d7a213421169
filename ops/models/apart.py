"""Prefill and decode apart: one engine computes a prompt, another takes its KV over NIXL and answers."""

import os
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import cast

import psutil
from msgspec.structs import replace

from app.engines.base import Disaggregated
from app.messages.job import PartialOutput
from ops.models.cell import Cell, right, wrong
from ops.models.loaded import Loaded, Model, answer, difference, loaded, request
from ops.models.plain import LONG

_PROMPT = LONG[100:600]
_BIND = "VLLM_CPU_OMP_THREADS_BIND"


async def apart(model: Model) -> Cell:
    async with AsyncExitStack() as stack:
        pair = list[Loaded]()
        for number, role in enumerate(("prefill", "decode")):
            with _core(number):
                pair.append(await stack.enter_async_context(loaded(model, role=role)))
        prefills, decodes = pair
        prefill_result = await cast("Disaggregated", prefills.engine).prefill(request(_PROMPT, 12))
        if prefill_result.handoff is None:
            return wrong("nothing was handed over")
        first = [] if prefill_result.output is None else [prefill_result.output]
        partial_outputs = [PartialOutput(output.tokens, len(output.text)) for output in first]
        rest = await answer(
            decodes.engine, replace(request(_PROMPT, 12), handoff=prefill_result.handoff, begun=partial_outputs)
        )
        if not any(step.pulled for step in rest):
            return wrong("the other engine took no KV")
        alone = await answer(prefills.engine, request(_PROMPT, 12))
        mismatch = difference(alone, [*first, *rest], prefills.dtype)
        return wrong(mismatch) if mismatch else right()


@contextmanager
def _core(number: int) -> Iterator[None]:
    """Gives each engine a core of its own: on the same one they slow each other ten-fold."""
    cores, before = sorted(psutil.Process().cpu_affinity()), os.environ.get(_BIND)
    os.environ[_BIND] = str(cores[number % len(cores)])
    try:
        yield
    finally:
        os.environ.pop(_BIND) if before is None else os.environ.update({_BIND: before})
