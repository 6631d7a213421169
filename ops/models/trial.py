"""One tiny model on the real engines: each column's cell."""

import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from app.errors import XylemError
from app.messages.lease import CacheGroup
from ops.models.architectures import written
from ops.models.cell import Cell, untried, wrong
from ops.models.columns import APART, OF_TEXTS, PLAIN, SGLANG, Find, cell
from ops.models.loaded import Loaded, Model, loaded
from ops.models.log import Log
from ops.models.on_sglang import on_sglang
from ops.models.plain import groups_of
from tests.forkserver import forks_of

_NOT_HERE = untried("it does not run here")


class Row(Struct, frozen=True, kw_only=True):
    name: str
    dtype: str
    groups: str
    cells: dict[str, Cell]  # by column
    day: str  # of the run
    seconds: float


async def tried(name: str, tokenizer: Path, audited: int, log: Log) -> Row:
    """`audited`: prompts. Raises nothing that is the model's fault."""
    began, day = time.monotonic(), f"{datetime.now(UTC):%Y-%m-%d}"
    with tempfile.TemporaryDirectory() as folder_name:
        model = Model(name, written(name, Path(folder_name), tokenizer), log)
        with forks_of("vllm"):
            dtype, groups, cells = await _on_vllm(model, audited)
            runs = cells["answers"].kind == "right"
            cells |= {column: await cell(model, find(model)) if runs else _NOT_HERE for column, find in APART.items()}
        cells |= {column: await cell(model, find(model)) for column, find in OF_TEXTS.items()}
        with forks_of("sglang"):
            cells |= await _on_sglang(model, audited)
    took = round(time.monotonic() - began, 1)
    return Row(name=name, dtype=dtype, groups=groups, cells=cells, day=day, seconds=took)


async def _on_vllm(model: Model, audited: int) -> tuple[str, str, dict[str, Cell]]:
    about = ("", "")
    cells = dict.fromkeys(PLAIN, _NOT_HERE)
    try:
        async with loaded(model) as it:
            about = it.dtype, _shown(groups_of(it))
            await _fill(cells, "answers", PLAIN, model, it, audited)
    except XylemError as exc:
        cells["answers"] = wrong(exc.message)
    return *about, cells


async def _on_sglang(model: Model, audited: int) -> dict[str, Cell]:
    cells = dict.fromkeys(SGLANG, _NOT_HERE)
    try:
        async with on_sglang(model) as it:
            await _fill(cells, "sglang", SGLANG, model, it, audited)
    except XylemError as exc:
        cells["sglang"] = wrong(exc.message)
    return cells


async def _fill(
    cells: dict[str, Cell], first: str, columns: dict[str, Find], model: Model, it: Loaded, audited: int
) -> None:
    """Fills the cells of one engine: none behind the `first` if that is wrong."""
    for column, find in columns.items():
        cells[column] = await cell(model, find(it, audited))
        if cells[first].kind == "wrong":
            return


def _shown(groups: list[CacheGroup]) -> str:
    counts = Counter((group.sees, group.block_size) for group in groups)
    return ", ".join(f"{number} × {sees} ({size})" for (sees, size), number in counts.items())
