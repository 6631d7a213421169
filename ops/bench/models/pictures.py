"""Pictures for every model that the engine can serve."""

import asyncio
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from ops.bench.parts import Say
from ops.bench.size import Size
from ops.models.pictures import LOOKS, figures, kind_of, seen
from tests.forkserver import forks_of
from tests.shallow import shallow_model


def pictures(_directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Tries pictures on all types of which a tiny model can be made here. Raises: Unavailable."""
    size.needs("real vLLM")
    rows = []
    with forks_of("vllm"):
        every = tuple(name for name in LOOKS if kind_of(name) == "image")
        for name in size.of(every, every[:4], ("llava",)):
            say(f"pictures: {name}")
            rows.append(asyncio.run(seen(name, shallow_model(), size.of(None, 4, 2))))
    return {**figures(rows), "pictures_seen": [asdict(row) for row in rows]}
