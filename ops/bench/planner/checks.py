"""Figures of other parts of operating: tracing, panels, groups, the chart, the soak."""

import os
import shutil
from pathlib import Path
from typing import Any

import httpx

from ops.bench import tracing
from ops.bench.parts import Say
from ops.bench.processes import Unavailable, figure_of
from ops.bench.size import Size
from ops.observability.empty import empty
from tests.helm import CHART, EXAMPLES, HELM, VERSIONS, helm
from tests.soak.growth import TOO_SHORT


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
    arguments = [*options, "tests/acceptance/test_dashboards.py"]
    return {"panels_empty": figure_of("pytest", arguments, directory, "panels_empty", fails=True)}


def groups(directory: Path, _size: Size, say: Say) -> dict[str, Any]:
    say("a lost member of a group")
    return {"group_recovery_s": figure_of("ops.bench.groups", [], directory, "group_recovery_s")}


def soak(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    size.leaves("minutes of load, which `make soak` has")
    say("soak")
    plot = ["--plot", str((directory / "soak.png").absolute())]
    length = ["--minutes", "60"] if size is Size.FULL else ["--minutes", "2", "--no-wait"]
    growth = figure_of("tests.soak", [*length, *plot], directory, "soak_growth")
    return {"soak_growth": growth} if size is Size.FULL else {"missing": {"soak_growth": TOO_SHORT}}
