"""Renders the chart of ops/helm, for tests. They need helm, which `ops/helm.sh` installs."""

import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.stack import ROOT

CHART = ROOT / "ops" / "helm"
EXAMPLES = {file.stem: file for file in sorted((CHART / "examples").glob("*.yaml"))}
# The oldest that Chart.yaml allows, and the newest whose schemas there are.
VERSIONS = ("1.30", "1.34", "1.37")
HELM, KUBECTL = (shutil.which(name) or str(ROOT / ".xylem" / "helm" / name) for name in ("helm", "kubectl"))

needs_helm = [
    pytest.mark.helm,
    pytest.mark.skipif(not Path(HELM).exists(), reason="no helm: ops/helm.sh installs it"),
]

Document = dict[str, Any]


def helm(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HELM, *args], check=False, capture_output=True, text=True, timeout=60)


def rendered(example: str, *args: str, version: str = VERSIONS[-1]) -> list[Document]:
    return rendered_from(EXAMPLES[example], *args, version=version)


@cache
def rendered_from(values: Path, *args: str, version: str = VERSIONS[-1]) -> list[Document]:
    result = helm("template", "xylem", str(CHART), "-f", str(values), "--kube-version", version, *args)
    assert result.returncode == 0, result.stderr
    return [doc for doc in yaml.safe_load_all(result.stdout) if doc]


def of_kind(docs: list[Document], *kinds: str) -> list[Document]:
    return [doc for doc in docs if doc["kind"] in kinds]


def named(docs: list[Document], kind: str, name: str) -> Document:
    (document,) = (doc for doc in of_kind(docs, kind) if doc["metadata"]["name"] == name)
    return document


def pods(docs: list[Document]) -> list[Document]:
    sets = [doc["spec"]["leaderWorkerTemplate"]["workerTemplate"] for doc in of_kind(docs, "LeaderWorkerSet")]
    return [doc["spec"]["template"] for doc in of_kind(docs, "Deployment", "StatefulSet")] + sets


def containers(docs: list[Document]) -> list[Document]:
    return [container for pod in pods(docs) for container in pod["spec"]["containers"]]


def selected(docs: list[Document], labels: dict[str, str]) -> list[Document]:
    return [pod for pod in pods(docs) if labels.items() <= pod["metadata"]["labels"].items()]


def ports(pod: Document) -> set[str]:
    return {port["name"] for container in pod["spec"]["containers"] for port in container.get("ports", [])}
