"""The prompt length from which a prefill worker pays off: short prompts among a few long ones, by `remote_tokens`."""

import math
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import uvloop

from ops.bench.disagg.fleets import pair
from ops.bench.disagg.load import together
from ops.bench.disagg.play import Asked, play, poisson
from ops.bench.parts import Say
from ops.bench.size import Size

LENGTHS = (64, 128, 256, 512, 1024, 2048)
_SHORTEST, _LONGEST, _ANSWER = 32, 4096, (100, 300)  # tokens
_PER_S = 10.0  # about 17 requests decode at a time
_SECONDS, _QUICK_SECONDS = 60.0, 20.0


def threshold(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """A row per threshold; all fleets get the same requests at the same moments. Raises: Unavailable."""
    rng, low, high = Random(3), math.log(_SHORTEST), math.log(_LONGEST)
    shapes = [(int(math.exp(rng.uniform(low, high))), rng.randint(*_ANSWER)) for _ in range(3000)]
    lengths, seconds = LENGTHS[: size.of(None, None, 1)], size.of(_SECONDS, _QUICK_SECONDS, 1.0)
    requests = poisson(5, _PER_S, seconds, shapes)
    with ExitStack() as stack:
        say(f"threshold: starting {len(lengths)} fleets")
        systems = {n: stack.enter_context(pair(directory / str(n), {"remote_tokens": n})) for n in lengths}
        for system in systems.values():
            uvloop.run(play(system, [Asked(0.3 * i, 2000, 100) for i in range(size.of(6, 6, 1))], 0))
        say(f"threshold: {_PER_S:.0f} requests/s for {seconds:.0f} s, to each of them")
        rows = uvloop.run(together(systems, requests, seconds, 5))
    return {"threshold": [{"remote_tokens": n, **row} for n, row in rows.items()]}
