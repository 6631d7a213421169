"""`python -m ops.bench.media.painted DIR`: how often a painter paints what it was asked for, by the pixels alone.

DIR is a pipeline in diffusers' format. The last line printed is JSON.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from PIL import Image

from app.demo_models.shapes.painting import GUIDANCE, STEPS
from ops.shapes.pictures import COLOURS, SHAPES, draw_picture, draw_scene

Paint = Callable[[str, int], Image.Image]  # prompt and seed

_LEAST_INK = 120  # of a picture that shows something: how far its darkest are from white, red, green and blue together
_ONE_COLOUR = 150  # most of a shape's ink is this near to its median, summed likewise
# The share of its bounding box that a shape fills: 1, pi / 4 and 1 / 2 if it is drawn well.
_FILLED = {"square": (0.815, 1.01), "circle": (0.66, 0.815), "triangle": (0.4, 0.64)}


@dataclass(frozen=True)
class Painted:
    colour: str
    shape: str  # "unknown" if it fills its box as no shape does


def painted(paint: Paint, seed: int, pictures: int = 50) -> dict[str, Any]:
    """The number of pictures with both the shape and the colour that were asked for, and with either."""
    rng = random.Random(f"painted {seed}")
    choices = [(rng.choice(list(COLOURS)), rng.choice(SHAPES)) for _ in range(pictures)]
    judgements = [judge(paint(_prompt(colour, shape), rng.randrange(2**31))) for colour, shape in choices]
    colours = [
        judgement is not None and judgement.colour == colour
        for judgement, (colour, _) in zip(judgements, choices, strict=True)
    ]
    shapes = [
        judgement is not None and judgement.shape == shape
        for judgement, (_, shape) in zip(judgements, choices, strict=True)
    ]
    both = [colour and shape for colour, shape in zip(colours, shapes, strict=True)]
    return {"painted": sum(both), "painted_colours": sum(colours), "painted_shapes": sum(shapes)}


def _prompt(colour: str, shape: str) -> str:
    return f"{'an' if colour == 'orange' else 'a'} {colour} {shape}"


def judge(picture: Image.Image) -> Painted | None:
    """The colour nearest to the ink's median, and the shape by how much of its box the ink fills; None without ink.

    Ink is what is half as far from white as the darkest are: a soft edge is none.
    """
    pixels = np.asarray(picture.convert("RGB")).astype(int)
    distance = (255 - pixels).sum(2)
    darkest = np.percentile(distance, 99.5)
    if darkest < _LEAST_INK:
        return None
    ink = distance > darkest / 2
    rows, columns = (np.flatnonzero(ink.sum(axis) > 1) for axis in (1, 0))  # a stray pixel makes no box larger
    if not (len(rows) and len(columns)):
        return None
    fill_share = ink.sum() / ((rows[-1] - rows[0] + 1) * (columns[-1] - columns[0] + 1))
    median = np.median(pixels[ink], axis=0)
    colour = min(COLOURS, key=lambda name: abs(median - COLOURS[name]).sum())
    if (abs(pixels[ink] - median).sum(1) < _ONE_COLOUR).mean() < 0.6:
        return Painted(colour, "unknown")
    return Painted(colour, next((s for s, (low, high) in _FILLED.items() if low <= fill_share < high), "unknown"))


def diffusers_painter(folder: Path) -> Paint:
    """The painter as its quality is measured: on one core, with the steps and guidance of `painting.py`."""
    import torch
    from diffusers import DiffusionPipeline

    pipeline = DiffusionPipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)

    def paint(prompt: str, seed: int) -> Image.Image:
        dice = torch.Generator().manual_seed(seed)
        output = pipeline(prompt, num_inference_steps=STEPS, guidance_scale=GUIDANCE, generator=dice)
        picture: Image.Image = output.images[0]
        return picture

    return paint


def sheet(paint: Paint) -> Image.Image:
    """Left, pictures that the eyes learn from; right, the same number, painted."""
    edge, rng = 64, random.Random(4)
    sheet_image = Image.new("RGB", (13 * (edge + 2), 3 * (edge + 2)), "gray")
    for row, shape in enumerate(SHAPES):
        for column, colour in enumerate(COLOURS):
            drawing = draw_picture(rng, draw_scene(rng), edge)
            sheet_image.paste(drawing, (column * (edge + 2), row * (edge + 2)))
            sheet_image.paste(paint(_prompt(colour, shape), 1), ((column + 7) * (edge + 2), row * (edge + 2)))
    return sheet_image


def main(
    folder: Path,
    seed: Annotated[int | None, typer.Option(help="A fresh one if not given.")] = None,
    pictures: int = 50,
    picture: Annotated[Path | None, typer.Option(help="Write a sheet of examples.")] = None,
) -> None:
    paint = diffusers_painter(folder)
    if picture:
        sheet(paint).save(picture, optimize=True)
    seed = random.SystemRandom().randrange(10**9) if seed is None else seed
    print(json.dumps(painted(paint, seed, pictures) | {"seed": seed}))


if __name__ == "__main__":
    typer.run(main)
