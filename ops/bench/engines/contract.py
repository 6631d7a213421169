"""The contract suite over all engines, in a process of its own."""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Any

from ops.bench.parts import Say
from ops.bench.processes import Unavailable
from ops.bench.size import Size

_SUITE = "tests/contract/test_engine_contract.py"
_ENGINES = ("mock", "trtllm", "vllm", "sglang")
_LIMIT_S = 1500.0


def contract(out_dir: Path, size: Size, say: Say) -> dict[str, Any]:
    """Raises: Unavailable."""
    size.leaves("the contract suite, which `make test` has")
    say("the contract suite over four engines")
    report = out_dir / "junit.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", _SUITE]
    env = os.environ | {"HF_HUB_OFFLINE": "1"}
    with (out_dir / "pytest.log").open("w") as log:
        try:
            subprocess.run(
                command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=_LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise Unavailable(f"the contract suite took over {_LIMIT_S:.0f} s: {out_dir / 'pytest.log'}") from None
    if not report.exists():
        raise Unavailable(f"the contract suite did not run: {out_dir / 'pytest.log'}")
    return counted(report.read_text())


def counted(junit: str) -> dict[str, Any]:
    """Numbers from pytest's report of what has passed, failed and was skipped, by engine.

    Raises: Unavailable when an engine was not tested, since no failures would say nothing then.
    """
    outcomes: dict[str, Counter[str]] = {engine: Counter() for engine in _ENGINES}
    for case in ET.fromstring(junit).iter("testcase"):
        name_match = re.search(rf"\[({'|'.join(_ENGINES)})\b", case.get("name", ""))
        engine = name_match[1] if name_match else "all"
        outcome = next((kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None), "passed")
        outcomes.setdefault(engine, Counter())[outcome] += 1
    if untested_engines := [engine for engine in _ENGINES if not outcomes[engine]]:
        raise Unavailable(f"the contract suite has not tested {', '.join(untested_engines)}")
    return {
        "contract": {engine: dict(counts) for engine, counts in outcomes.items()},
        "contract_failed": sum(counts["failure"] + counts["error"] for counts in outcomes.values()),
    }
