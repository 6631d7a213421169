"""The planner's scaler for Kubernetes, against a server that speaks its API; kubectl sees what it has done."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kmock import KubernetesEmulator, KubernetesError, Request

from app.errors import ScalingFailed, SettingsError
from app.ids import PoolId, WorkerId
from app.messages.lease import Worker
from app.planner.desired import Desired
from tests.helm import KUBECTL
from tests.stack import free_port
from workers.planner.scalers.kubernetes import KubernetesScaler

POOL = PoolId("decode-pool-a")
NAME = f"xylem-{POOL}"
COST = "controller.kubernetes.io/pod-deletion-cost"
KINDS = {"Deployment": "apps/v1/deployments", "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1/leaderworkersets"}


class Cluster:
    """A namespace with a workload of three pods, and a pod of another one."""

    def __init__(self, server: KubernetesEmulator, account: Path) -> None:
        self.server, self.account = server, account
        self.url = str(server.url)
        server.resources["v1/pods"] = {
            "kind": "Pod",
            "namespaced": True,
            "singular": "pod",
            "verbs": {"get", "list", "patch"},
        }
        for name, pool in (("a", POOL), ("b", POOL), ("c", POOL), ("d", "other")):
            server.objects["v1/pods", "ns", name] = pod(name, pool)
        for kind, resource in KINDS.items():
            server.resources[resource] = {
                "kind": kind, "namespaced": True, "singular": kind.lower(), "verbs": {"get", "list", "patch"},
                "subresources": {"scale"},
            }  # fmt: skip
            server.objects[resource, "ns", NAME] = {
                "apiVersion": resource.rpartition("/")[0], "kind": kind, "metadata": {"name": NAME, "namespace": "ns"},
                "spec": {"replicas": 3},
            }  # fmt: skip
        server[server.subresource("scale")] << self._scale
        server["list", server.resource("v1/pods")] << self._selected

    def _scale(self, request: Request) -> dict[str, Any]:
        if request.name != NAME:
            raise KubernetesError(404, "NotFound", "there is none")
        spec = self.server.objects[request.resource, "ns", NAME].raw["spec"]
        status = {"replicas": 3, "selector": f"xylem/pool={POOL}"}
        return {
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": {"name": NAME},
            "spec": spec,
            "status": status,
        }

    def _selected(self, request: Request) -> dict[str, Any]:
        key, _, value = request.params["labelSelector"].partition("=")
        pods = [self.server.objects["v1/pods", "ns", name].raw for name in "abcd"]
        return {"items": [one for one in pods if one["metadata"]["labels"].get(key) == value]}

    def patches(self) -> list[Request]:
        return [request for request in self.server if request.method.value == "PATCH"]

    def replicas(self, kind: str = "Deployment") -> int:
        return int(self.server.objects[KINDS[kind], "ns", NAME].raw["spec"]["replicas"])

    def costs(self) -> dict[str, str]:
        pods = {name: self.server.objects["v1/pods", "ns", name].raw for name in "abcd"}
        return {name: cost for name, one in pods.items() if (cost := one["metadata"]["annotations"].get(COST))}


def pod(name: str, pool: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": "ns", "labels": {"xylem/pool": pool}, "annotations": {"other": "stays"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta}


def worker(name: str) -> Worker:
    return Worker(WorkerId(f"worker-{name}"), POOL, "both", name, 1, 16, 100, 8, 4096)


def desired(workers: int, *drain: str) -> Desired:
    return Desired(workers, "traffic", 1, 0.0, act=True, drain=[WorkerId(f"worker-{name}") for name in drain])


WORKERS = [worker(name) for name in "abc"]


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("token-of-the-pod\n")
    (tmp_path / "namespace").write_text("ns")
    return tmp_path


@pytest.fixture
def cluster(kmock: KubernetesEmulator, account: Path) -> Cluster:
    return Cluster(kmock, account)


@pytest.fixture
async def scaler(cluster: Cluster) -> AsyncIterator[KubernetesScaler]:
    kubernetes_scaler = KubernetesScaler(cluster.url, cluster.account, "xylem", {POOL: "Deployment"})
    yield kubernetes_scaler
    await kubernetes_scaler.close()


async def test_more_workers_are_one_patch_of_the_scale_with_the_pods_token(
    cluster: Cluster, scaler: KubernetesScaler
) -> None:
    await scaler.scale(POOL, desired(5), WORKERS)
    assert cluster.replicas() == 5
    (patch,) = cluster.patches()
    assert patch.url.path == f"/apis/apps/v1/namespaces/ns/deployments/{NAME}/scale"
    assert patch.data == {"spec": {"replicas": 5}}
    assert {request.headers["Authorization"] for request in cluster.server} == {"Bearer token-of-the-pod"}


async def test_the_pods_that_a_plan_names_cost_least_to_end_before_fewer_are_wanted(
    cluster: Cluster, scaler: KubernetesScaler
) -> None:
    await scaler.scale(POOL, desired(1, "c", "a"), WORKERS)
    assert cluster.replicas() == 1
    assert cluster.costs() == {"c": "-2", "a": "-1"}
    assert [request.url.path.rpartition("/")[2] for request in cluster.patches()] == ["a", "c", "scale"]


async def test_a_pod_that_an_earlier_plan_named_costs_as_much_as_the_others_again(
    cluster: Cluster, scaler: KubernetesScaler
) -> None:
    """Another planner may have led then."""
    cluster.server.objects["v1/pods", "ns", "a"].patch({"metadata": {"annotations": {COST: "-1"}}})
    await scaler.scale(POOL, desired(2, "b"), WORKERS)
    assert cluster.costs() == {"b": "-1"}
    assert cluster.server.objects["v1/pods", "ns", "a"].raw["metadata"]["annotations"] == {"other": "stays"}


async def test_as_many_as_are_wanted_are_left_alone(cluster: Cluster, scaler: KubernetesScaler) -> None:
    await scaler.scale(POOL, desired(3), WORKERS)
    assert cluster.patches() == []


async def test_groups_of_hosts_are_scaled_as_well(cluster: Cluster) -> None:
    scaler = KubernetesScaler(cluster.url, cluster.account, "xylem", {POOL: "LeaderWorkerSet"})
    await scaler.scale(POOL, desired(4), WORKERS)
    await scaler.close()
    assert (cluster.replicas("LeaderWorkerSet"), cluster.replicas()) == (4, 3)


async def test_what_kubernetes_refuses_is_told_with_its_reason(cluster: Cluster) -> None:
    scaler = KubernetesScaler(cluster.url, cluster.account, "another", {POOL: "Deployment"})
    with pytest.raises(ScalingFailed, match=f"another-{POOL}/scale: 404: there is none"):
        await scaler.scale(POOL, desired(4), WORKERS)
    await scaler.close()


async def test_an_api_that_is_away_is_told(account: Path) -> None:
    scaler = KubernetesScaler(f"http://127.0.0.1:{free_port()}", account, "xylem", {POOL: "Deployment"})
    with pytest.raises(ScalingFailed, match="ConnectError"):
        await scaler.scale(POOL, desired(4), WORKERS)
    await scaler.close()


def test_outside_of_a_pod_there_is_no_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SettingsError, match="KUBERNETES_SERVICE_HOST is not set"):
        KubernetesScaler.of_this_pod("xylem", {})
    with pytest.raises(SettingsError, match="no service account"):
        KubernetesScaler("http://127.0.0.1:1", tmp_path, "xylem", {})


@pytest.mark.helm
@pytest.mark.skipif(not Path(KUBECTL).exists(), reason="no kubectl: ops/helm.sh installs it")
async def test_kubectl_scales_with_the_same_request_and_sees_what_was_done(
    cluster: Cluster, scaler: KubernetesScaler, tmp_path: Path
) -> None:
    async def kubectl(*argv: str) -> str:
        command = [KUBECTL, "--server", cluster.url, "--namespace", "ns", f"--cache-dir={tmp_path}/cache", *argv]
        result = await asyncio.to_thread(
            subprocess.run, command, check=False, capture_output=True, text=True, timeout=60
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    await kubectl("scale", f"deployment/{NAME}", "--replicas=2")
    await scaler.scale(POOL, desired(6), WORKERS)
    theirs, ours = cluster.patches()
    assert (theirs.url.path, theirs.data) == (ours.url.path, {"spec": {"replicas": 2}})
    assert theirs.headers["Content-Type"] == ours.headers["Content-Type"]
    assert await kubectl("get", "deployment", NAME, "-o", "jsonpath={.spec.replicas}") == "6"
