"""`make bench NAME=media`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ops.bench.media import guards, images, report, second_question, seeing, sound
from ops.bench.parts import run_parts


class Part(StrEnum):
    guards = "guards"
    seeing = "seeing"
    second_question = "second_question"
    images = "images"
    sound = "sound"


def main(
    quick: Annotated[bool, typer.Option(envvar="QUICK", help="Fewer and shorter runs: under ten minutes.")] = False,
    only: Annotated[list[Part] | None, typer.Option(help="Run these parts only.")] = None,
    out: Annotated[Path, typer.Option(help="Where reports go.")] = Path(".xylem/bench"),
) -> None:
    """Measure media: bad input, questions about pictures, painting, speech."""
    parts = {
        Part.guards: guards.measured, Part.seeing: seeing.measured, Part.second_question: second_question.measured,
        Part.images: images.measured, Part.sound: sound.measured,
    }  # fmt: skip
    run_parts("media", report, parts, only or list(Part), quick, out)


if __name__ == "__main__":
    typer.run(main)
