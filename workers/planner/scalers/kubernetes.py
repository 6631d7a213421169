"""Scales Deployments, StatefulSets and LeaderWorkerSets through Kubernetes' API, as a pod of the same cluster.

Of a Deployment, the pods that the plan names are ended first: their `pod-deletion-cost` says so. The others end their
last ones, whatever the plan names.
"""

import os
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from app.errors import ScalingFailed, SettingsError
from app.ids import PoolId
from app.messages.lease import Worker
from app.planner.desired import Desired
from app.pools.schema import WorkloadKind

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PATHS: Mapping[WorkloadKind, tuple[str, str]] = {
    "Deployment": ("apps/v1", "deployments"),
    "StatefulSet": ("apps/v1", "statefulsets"),
    "LeaderWorkerSet": ("leaderworkerset.x-k8s.io/v1", "leaderworkersets"),
}
_COST = "controller.kubernetes.io/pod-deletion-cost"
_PATCH = {"Content-Type": "application/merge-patch+json"}
_TIMEOUT_S = 10.0


class KubernetesScaler:
    def __init__(self, url: str, account: Path, name: str, kinds: Mapping[PoolId, WorkloadKind]) -> None:
        """`account`: the folder with `token`, `namespace` and, for HTTPS, `ca.crt`. `name`: of a workload, before its
        pool's.

        Raises: SettingsError.
        """
        self._account, self._name, self._kinds = account, name, kinds
        try:
            self._namespace = (account / "namespace").read_text().strip()
            verification = ssl.create_default_context(cafile=account / "ca.crt") if url.startswith("https") else True
        except OSError as exc:
            raise SettingsError(f"--scaler=kubernetes: no service account: {account}: {exc.strerror}") from exc
        self._client = httpx.AsyncClient(base_url=url, verify=verification, timeout=_TIMEOUT_S, trust_env=False)

    @classmethod
    def of_this_pod(cls, name: str, kinds: Mapping[PoolId, WorkloadKind]) -> "KubernetesScaler":
        """Raises: SettingsError."""
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if host is None:
            raise SettingsError("--scaler=kubernetes: KUBERNETES_SERVICE_HOST is not set: this is no pod")
        return cls(f"https://{f'[{host}]' if ':' in host else host}:{port}", ACCOUNT, name, kinds)

    async def scale(self, pool: PoolId, target: Desired, workers: Sequence[Worker]) -> None:
        group, plural = _PATHS[self._kinds[pool]]
        path = f"/apis/{group}/namespaces/{self._namespace}/{plural}/{self._name}-{pool}/scale"
        scale_object = await self._ask("GET", path)
        there = scale_object["spec"].get("replicas", 0)
        if there > target.workers:
            hosts = {worker.id: worker.host for worker in workers}  # a pod's host name is its own
            drained_pods = [hosts[worker] for worker in target.drain if worker in hosts]
            await self._mark(scale_object["status"]["selector"], drained_pods)
        if there != target.workers:
            await self._ask("PATCH", path, {"spec": {"replicas": target.workers}})

    async def close(self) -> None:
        await self._client.aclose()

    async def _mark(self, selector: str, names: Sequence[str]) -> None:
        """The `names` pods cost less to end than the others, the first one least."""
        pods = f"/api/v1/namespaces/{self._namespace}/pods"
        for pod in (await self._ask("GET", pods, labelSelector=selector))["items"]:
            name, old_cost = pod["metadata"]["name"], pod["metadata"].get("annotations", {}).get(_COST)
            cost = str(names.index(name) - len(names)) if name in names else None
            if cost != old_cost:
                await self._ask("PATCH", f"{pods}/{name}", {"metadata": {"annotations": {_COST: cost}}})

    async def _ask(self, method: str, path: str, patch: Mapping[str, Any] | None = None, **params: str) -> Any:
        """Raises: ScalingFailed."""
        try:
            # Kubernetes renews the token.
            headers = {"Authorization": f"Bearer {(self._account / 'token').read_text().strip()}", **_PATCH}
            answer = await self._client.request(method, path, json=patch, params=params, headers=headers)
            content = answer.json()
        except (httpx.HTTPError, OSError, ValueError) as exc:
            raise ScalingFailed(f"{method} {path}: {exc!r}") from exc
        if not answer.is_success:
            raise ScalingFailed(f"{method} {path}: {answer.status_code}: {content.get('message')}")
        return content
