"""Figures of other parts of operating: tracing, panels, groups, the chart, the soak."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx

from ops.bench import tracing
from ops.bench.parts import Say
from ops.bench.processes import Unavailable
from ops.bench.size import Size
from ops.observability.empty import empty
from tests.helm import CHART, EXAMPLES, HELM, VERSIONS, helm
from tests.soak.growth import TOO_SHORT
from tests.stack import ROOT


def helm_examples(_directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Examples that helm refuses (`lint --strict`, `template`), or whose manifests break a schema of Kubernetes."""
    size.needs("helm")
    if not Path(HELM).exists():
        raise Unavailable("no helm: ops/helm.sh installs it")
    invalid = 0
    for name, values in list(EXAMPLES.items())[: size.of(None, None, 1)]:
        say(f"helm: {name}")
        good = helm("lint", "--strict", str(CHART), "-f", str(values)).returncode == 0
        for version in VERSIONS:
            run = helm("template", "xylem", str(CHART), "-f", str(values), "--kube-version", version)
            good = good and run.returncode == 0 and _valid(run.stdout, version)
        invalid += not good
    return {"helm_examples_invalid": invalid}


def _valid(manifests: str, version: str) -> bool:
    import kubernetes_validate
    import yaml

    for document in filter(None, yaml.safe_load_all(manifests)):
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError:
            return False
        except kubernetes_validate.SchemaNotFoundError:
            pass  # a custom resource
    return True


def traced(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    return tracing.measured(directory, size, say)


def panels(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Empty panels of a fleet that does everything.

    The fleet is what the Prometheus at XYLEM_BENCH_PROMETHEUS watches, or the test's.
    """
    size.leaves("a fleet that does everything, which tests/acceptance/test_dashboards.py has")
    if url := os.environ.get("XYLEM_BENCH_PROMETHEUS"):
        with httpx.Client(base_url=url, timeout=30) as prometheus:
            return {"panels_empty": len(empty(prometheus))}
    if shutil.which("prometheus") is None:
        raise Unavailable("XYLEM_BENCH_PROMETHEUS names no Prometheus, and none is installed")
    say("panels")
    options = ["-q", "-s", "-p", "no:cacheprovider", f"--basetemp={(directory / 'fleet').absolute()}"]
    return _module("pytest", [*options, "tests/acceptance/test_dashboards.py"], directory, "panels_empty", fails=True)


def groups(directory: Path, _size: Size, say: Say) -> dict[str, Any]:
    say("a lost member of a group")
    return _module("ops.bench.groups", [], directory, "group_recovery_s")


def soak(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    size.leaves("minutes of load, which `make soak` has")
    say("soak")
    plot = ["--plot", str((directory / "soak.png").absolute())]
    length = ["--minutes", "60"] if size is Size.FULL else ["--minutes", "2", "--no-wait"]
    figures = _module("tests.soak", [*length, *plot], directory, "soak_growth")
    return figures if size is Size.FULL else {"missing": {"soak_growth": TOO_SHORT}}


def _module(name: str, arguments: list[str], directory: Path, key: str, *, fails: bool = False) -> dict[str, Any]:
    """A figure that a module prints as JSON, in a line of its own. `fails`: it counts also of one that fails."""
    if find_spec(name) is None:
        raise Unavailable(f"{name} is not there")
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / f"{name}.log"
    with log.open("w") as err:
        run = subprocess.run(
            [sys.executable, "-m", name, *arguments],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=err, text=True, check=False,
        )  # fmt: skip
        err.write(run.stdout)
    figures = [line for line in run.stdout.splitlines() if line.startswith("{") and f'"{key}"' in line]
    if not figures or (run.returncode and not fails):
        raise Unavailable(f"{name} failed: {log}")
    return {key: json.loads(figures[-1])[key]}
