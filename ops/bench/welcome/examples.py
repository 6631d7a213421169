"""The programs of `examples/`, each against a mock engine."""

import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from ops.bench.parts import Say
from ops.bench.size import Size
from ops.clients.trial import try_all
from ops.clients.tried import EXAMPLES
from tests.stack import PYTHON, ROOT


def examples(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Runs those that need packages of their own, and the test of the others. Raises: Unavailable without a server."""
    size.leaves("examples, which `make clients` and a test run")
    failures = [outcome for outcome in try_all(EXAMPLES, directory, say) if outcome.failure]
    for failure in failures:
        say(f"{failure.client.script}: {failure.failure}")
    say("tests/acceptance/test_examples.py")
    return {"examples_failing": len(failures) + _failing_tests(directory / "tests.xml")}


def _failing_tests(report: Path) -> int:
    command = (PYTHON, "-m", "pytest", "-q", "tests/acceptance/test_examples.py", f"--junitxml={report}")
    subprocess.run(command, cwd=ROOT, check=False, capture_output=True)
    suite = ET.parse(report).getroot()[0]
    return int(suite.attrib["failures"]) + int(suite.attrib["errors"])
