"""Commands until a first token of a model in a folder, and seconds until the mock engine is ready."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from ops.bench.parts import Say
from ops.bench.size import Size
from tests.stack import ROOT
from tests.welcome.hour import Hour, hour

_MODEL = ROOT / ".xylem" / "models" / "SmolLM2-135M-Instruct"


def door(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Serves the folder with the mock engine, and with vLLM, and asks; the greater count of commands is told.

    Raises: Unavailable in the smallest sizes.
    """
    size.leaves("a newcomer's way in, which has a test")
    seconds: list[float] = []
    commands = 0
    for number in range(size.of(5, 3, 0)):
        say(f"mock: {number}")
        with _first_token(directory / f"mock-{number}", "mock") as (person, ready_s):
            seconds.append(ready_s)
            commands = max(commands, person.effort.commands)
    say("vLLM")
    with _first_token(directory / "vllm", "vllm") as (person, _):
        commands = max(commands, person.effort.commands)
    return {"commands_to_first_token": commands, "ready_s": median(seconds), "ready_s_values": seconds}


@contextmanager
def _first_token(folder: Path, engine: str) -> Iterator[tuple[Hour, float]]:
    """Someone who has had a token; and the seconds until the API said how to ask."""
    folder.mkdir()
    with hour(folder) as person:
        person.serve(f"xylem serve {_MODEL} --engine {engine}")
        ready_s = person.effort.seconds
        person.ask_as_told()
        yield person, ready_s
