"""The columns of the matrix: one line for each, and for how it is found out."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from app.errors import XylemError
from ops.bench.processes import Unavailable
from ops.models import plain, public
from ops.models.adapted import adapted
from ops.models.apart import apart
from ops.models.cell import Cell, untried, wrong
from ops.models.loaded import Loaded, Model
from ops.models.tiered import tiered

_LIMIT_S = 600.0  # of one cell


class Column(NamedTuple):
    heading: str
    about: str


COLUMNS = {
    "answers": Column("answers", "Twelve tokens behind a prompt of 700."),
    "from_cache": Column(
        "the same from cache",
        "A prompt of 700 tokens is answered alike when its KV comes from the cache.",
    ),
    "foretold": Column(
        "foretold",
        "Of so many prompts, beside evictions, routing foretold each one's cached tokens "
        "([models whose layers differ](../guide/routing.md#models-whose-layers-differ)).",
    ),
    "goes_on": Column("goes on", "An answer that broke off after seven tokens goes on as the whole one does."),
    "structured": Column("structured", "An answer obeys a grammar."),
    "lora": Column("LoRA", "An adapter changes the answer, the same way twice, and the model's own stays as it was."),
    "apart": Column(
        "prefill and decode apart", "The answer behind KV that another engine has computed is that of one engine."
    ),
    "tiers": Column("tiers", "What the cache has evicted comes back from host memory, with the same answer."),
    "template": Column(
        "template", "So many conversations are rendered with the model's public chat template as transformers does."
    ),
    "calls": Column("calls", "The calls that this template writes are read back, by this dialect."),
    "sglang": Column("SGLang", "Answers there."),
    "sglang_foretold": Column("SGLang foretold", "As above."),
}
# On the engine that has started as it is; with engines of their own; without any.
Find = Callable[[Loaded, int], Awaitable[Cell]]
PLAIN: dict[str, Find] = {
    "answers": lambda it, _: plain.answers(it),
    "from_cache": lambda it, _: plain.from_cache(it),
    "goes_on": lambda it, _: plain.goes_on(it),
    "structured": lambda it, _: plain.structured(it),
    "foretold": plain.foretold,
}
SGLANG: dict[str, Find] = {"sglang": lambda it, _: plain.answers(it), "sglang_foretold": plain.foretold}
APART: dict[str, Callable[[Model], Awaitable[Cell]]] = {"lora": adapted, "apart": apart, "tiers": tiered}
OF_TEXTS: dict[str, Callable[[Model], Awaitable[Cell]]] = {"template": public.rendered, "calls": public.called}


async def cell(model: Model, found: Awaitable[Cell]) -> Cell:
    """The cell that `found` returns; an engine's error, no end in time and a missing package are cells, too."""
    try:
        async with asyncio.timeout(_LIMIT_S):
            return await found
    except XylemError as exc:
        return wrong(model.log.reason(exc.message))
    except TimeoutError:
        return wrong(f"took over {_LIMIT_S:.0f} s")
    except Unavailable as exc:
        return untried(str(exc))
