"""Answers of two roles over two hosts each, against those of one host."""

import os
import shutil
from pathlib import Path
from statistics import mean
from typing import Any

from ops.bench.parts import Say
from ops.bench.processes import Unavailable
from ops.bench.size import Size
from tests.apart_on_hosts import ENGINES, answers, apart_on_hosts


def roles(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """The share of answers that are equal, of the engine that has fewer. Raises: Unavailable."""
    size.leaves("engines over several hosts, which `make nodes` has")
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise Unavailable("network namespaces need root, and `ip` of iproute2")
    shares = {}
    for engine in ENGINES:
        say(f"{engine}: prefill and decode, each over two hosts")
        (folder := directory / engine).mkdir()
        with apart_on_hosts(folder, engine) as hosts:
            both = [answers(hosts, number) for number in range(size.of(20, 6, 0))]
        shares[engine] = mean(one.apart == one.alone for one in both)
    return {"roles_hosts_equal": min(shares.values()), "roles_hosts_equal_values": list(shares.values())}
