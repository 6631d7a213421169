"""Whether routing foretells what engines have cached: all mixes of layers, on tiny models as `make models` has them."""

import asyncio
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct

from app.errors import XylemError
from app.kv.groups import grid
from ops.bench.parts import Say
from ops.bench.processes import Unavailable
from ops.bench.size import Size
from ops.models.architectures import ARCHITECTURES, written
from ops.models.audit import audit, prompts
from ops.models.loaded import Model, loaded
from ops.models.log import Log
from ops.models.plain import groups_of
from tests.forkserver import forks_of
from tests.shallow import shallow_model
from workers.engine.kv_indices import why_unindexed

_PROMPTS, _FEW = 60, 30
_MIXES = ("gemma3", "gpt_oss", "lfm2", "llama4")  # windows on either side of what sees all, states, chunks


class Audited(Struct, frozen=True, array_like=True):
    model: str
    groups: str
    prompts: int = 0
    evicted: int = 0  # times that blocks were
    wrong: int = 0  # prompts of which too much or too little was foretold


def index(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Audits all architectures whose events can be placed. Raises: Unavailable."""
    size.needs("real vLLM")
    rows, not_indexed = list[Audited](), dict[str, str]()
    count = size.of(_PROMPTS, _FEW, 6)
    with forks_of("vllm"):
        for name in size.of((*ARCHITECTURES,), _MIXES, ("gemma3",)):
            say(f"index: {name}")
            folder = directory / name
            folder.mkdir(parents=True)
            model = Model(name, written(name, folder, shallow_model()), Log(directory / f"{name}.log"))
            try:
                rows.append(asyncio.run(_audited(model, count)))
            except (XylemError, Unavailable) as exc:
                not_indexed[name] = str(exc)
    if not rows:
        raise Unavailable(f"no engine answered: {not_indexed}")
    return {
        "index_wrong": sum(row.wrong for row in rows),
        "index": [[row.model, row.groups, row.prompts, row.evicted, row.wrong] for row in rows],
        "not_indexed": not_indexed,
    }


async def _audited(model: Model, count: int) -> Audited:
    """Raises: XylemError, of the engine's own reason; Unavailable where its events can't be placed."""
    async with loaded(model) as it:
        groups = groups_of(it)
        if (why := why_unindexed(it.info)) or grid(groups) is None or not it.engine.kv_events():
            raise Unavailable(why or "it tells nothing of its cache")
        outcome = await audit(it, groups, prompts(Random(7), count))
    kinds = ", ".join(f"{group.sees} ({group.block_size})" for group in groups)
    return Audited(model.name, kinds, count, outcome.evicted, outcome.wrong)
