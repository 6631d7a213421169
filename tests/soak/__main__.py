"""`make soak`: what processes and Redis hold, under mixed load with faults; a table, a plot, and one line of JSON.

`soak_growth` is the largest growth in an hour, as a share (`growth.py`): of the memory and the descriptors of each
process that faults spare, and of the number and the bytes of Redis' keys. Answers, batches and kept answers expire
within minutes here, so what only ever grows is a leak. `keys_left` is what is there when all of it has expired.
"""

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from tests.background import beside
from tests.chaos import faults
from tests.chaos.fleet import Fleet, pools
from tests.chaos.load import make_cases, make_picture_cases, make_structured_cases
from tests.chaos.run import Report, leaked_blocks, run
from tests.soak.clients import Clients
from tests.soak.growth import WARM_UP
from tests.soak.report import Found, as_json, plot, show
from tests.soak.sampler import Sampler, kinds
from tests.stack import mock_pool

KEEP_S = 30.0
# What is told or stored expires at the latest so long after its request's deadline: `app/keys/keys.toml`.
EXPIRY_S = 90 + 60 + KEEP_S
SHORT = {
    "XYLEM_KEEP_S": str(KEEP_S),
    "XYLEM_BATCH_KEEP_S": str(KEEP_S),
    "XYLEM_REQUEST_TIMEOUT_S": "90",
    "XYLEM_STREAM_TTL_S": "20",  # else what was told to killed replicas is most of all keys' bytes, by chance
}
SPARED = ("api-0", "decode-pool-a-0", "eyes-0", "embed-pool-0")
FAULTS = (
    faults.worker_killed,
    faults.worker_drained,
    faults.worker_hiccups,
    faults.api_killed,
    faults.connections_cut,
)


async def quiet(_fleet: Fleet, rng: random.Random) -> None:
    """No fault."""
    await asyncio.sleep(rng.uniform(5, 20))


def some(minutes: float, rng: random.Random) -> Iterator[faults.Fault]:
    """Faults for so long: with pauses between them, but in the warm-up.

    The first ones of each kind cost other processes memory, which would count as growth.
    """
    began = time.monotonic()
    while (progress := (time.monotonic() - began) / 60 / minutes) < 1:
        if progress >= WARM_UP:
            yield quiet
        yield rng.choice(FAULTS)


async def soak(fleet: Fleet, minutes: float, seed: int, every_s: float) -> tuple[Report, Clients, Sampler]:
    rng = random.Random(seed)
    cases = make_cases("mock", 12, rng) + make_structured_cases("mock", 6, rng) + make_picture_cases("mock", 6, rng)
    clients, sampler = Clients(fleet, seed), Sampler(fleet, every_s)
    sampler.start()
    async with beside(clients.run()):
        report = await run(fleet, cases, some(minutes, rng), seed=seed, clients=6)
    sampler.stop()
    report.leaked_blocks = await leaked_blocks(fleet)  # `run` counted while these clients still asked
    return report, clients, sampler


def expired(fleet: Fleet) -> Counter[str]:
    """Keys by kind, when what expires has."""
    end = time.monotonic() + EXPIRY_S
    counts, _ = kinds(fleet)
    while time.monotonic() < end:
        time.sleep(5)
        counts, _ = kinds(fleet)
    return counts


def main() -> int:
    """0 when every answer and every batch was whole."""
    options = argparse.ArgumentParser(prog="make soak")
    options.add_argument("--minutes", type=float, default=60)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--every", type=float, default=5, help="seconds between samples")
    options.add_argument("--no-wait", action="store_true", help="end with the load: `keys_left` is unknown")
    options.add_argument("--keep", type=Path, help="a folder for the logs, which else are deleted")
    options.add_argument("--plot", type=Path, default=Path(".xylem/soak.png"))
    arguments = options.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as by Ctrl-C, the fleet ends
    out = Console(file=sys.stderr)
    with tempfile.TemporaryDirectory() as scratch:
        directory = (arguments.keep or Path(scratch)).absolute()
        pool_configs = pools(directory / "kv") | {"embed-pool": mock_pool(model="embedder") | {"task": "embed"}}
        for pool in pool_configs.values():
            pool["args"] = pool["args"] | {"kv_events": {"buffer_steps": 500}}  # else replays fill for an hour
        fleet = Fleet(directory / "fleet", pool_configs, workers=2, forks=False, spared=SPARED, **SHORT)
        with fleet, out.status(f"{arguments.minutes:g} minutes"):
            fleet.stack.worker("batch", "batch")
            report, clients, sampler = asyncio.run(soak(fleet, arguments.minutes, arguments.seed, arguments.every))
            arguments.plot.parent.mkdir(parents=True, exist_ok=True)
            arguments.plot.with_suffix(".json").write_text(json.dumps(sampler.as_json()))
            leftover_keys = None if arguments.no_wait else expired(fleet)
    findings = Found.of(sampler)
    show(report, clients, sampler, findings, leftover_keys, out)
    plot(sampler, arguments.plot)
    sys.stdout.write(json.dumps(as_json(report, clients, findings, leftover_keys)) + "\n")
    return int(bool(report.bad or clients.wrong or report.index.wrong or report.leaked_blocks))


if __name__ == "__main__":
    sys.exit(main())
