"""The chart of ops/helm: what it refuses, and that what it makes is valid and fits together."""

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from app.pools.pools_file import load_pools
from app.settings import Settings, load_settings
from tests.helm import (
    CHART,
    EXAMPLES,
    VERSIONS,
    containers,
    helm,
    named,
    needs_helm,
    of_kind,
    pods,
    ports,
    rendered,
    selected,
)
from tests.stack import ROOT
from workers.planner.scalers.kubernetes import ACCOUNT

pytestmark = needs_helm

# Their schemas come with their operators.
CUSTOM = {"LeaderWorkerSet", "ServiceMonitor", "PodMonitor", "PrometheusRule", "ScaledObject"}


@pytest.mark.parametrize("example", EXAMPLES)
def test_helm_finds_nothing_to_warn_of(example: str) -> None:
    result = helm("lint", "--strict", str(CHART), "-f", str(EXAMPLES[example]))
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("example", EXAMPLES)
def test_kubernetes_takes_every_manifest(example: str, version: str) -> None:
    docs = rendered(example, version=version)
    for doc in docs:
        if doc["kind"] not in CUSTOM:
            kubernetes_validate.validate(doc, version, strict=True)
    assert {"Deployment", "Service", "ConfigMap", "NetworkPolicy", "PodDisruptionBudget"} <= {d["kind"] for d in docs}


def test_the_examples_show_every_kind_of_object() -> None:
    assert {doc["kind"] for example in EXAMPLES for doc in rendered(example)} >= CUSTOM | {
        "HorizontalPodAutoscaler", "PersistentVolumeClaim", "Secret", "StatefulSet",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("api.replica=2", "/api/replica"),
        ("api.replicas=0", "/api/replicas"),
        ("workers.decode-pool-a.gpus=two", "/workers/decode-pool-a/gpus"),
        ("workers.decode-pool-a.gpu=2", "/workers/decode-pool-a/gpu"),
        ("workers.decode-pool-b.gpus=2", "workers.decode-pool-b"),
        ("workers.decode-pool-a.keda.minReplicas=1", "maxReplicas"),
        ("workers.decode-pool-a.shm=lots", "/workers/decode-pool-a/shm"),
        ("poolsFile.pools=null", "/poolsFile"),
        ("poolsFile.pools.Pool_B.model=m,poolsFile.pools.Pool_B.engine=mock", "Pool_B"),
        ("poolsFile.pools.batch.model=m,poolsFile.pools.batch.engine=mock", "batch"),
        ("poolsFile.pools.pool-b.model=m", "/poolsFile/pools/pool-b"),
        ("settings.XYLEM_ADMIN_KEY=key", "/settings/XYLEM_ADMIN_KEY"),
        ("settings.XYLEM_GRPC_PORT=8001", "/settings/XYLEM_GRPC_PORT"),
        ("api.grpcPort=0", "/api/grpcPort"),
        ("settings.XYLEM_REDIS_URL=redis://somewhere", "/settings/XYLEM_REDIS_URL"),
        ("settings.XYLEM_DRAIN_TIMEOUT_S=soon", "/settings/XYLEM_DRAIN_TIMEOUT_S"),
        ("settings.LOG_LEVEL=debug", "LOG_LEVEL"),
        ("redis.secret=mine", "redis.secret"),
        ("valkey.enabled=false", "redis.secret"),
        ("valkey.seed=short", "/valkey/seed"),
        ("flower.enabled=true", "flower.envSecret"),
        ("planner.enabled=true", "poolsFile.planner.objectives"),
        ("usage.enabled=true", "usage.urlSecret"),
        ("planner.interval=0", "/planner/interval"),
        ("api.hpa.minReplicas=1,api.hpa.maxReplicas=2,api.hpa.cpuPercent=70", "api.resources.requests.cpu"),
        ("data.size=", "data.size"),
        ("models.sise=1Gi", "/models/sise"),
        ("monitoring.interval=often", "/monitoring/interval"),
    ],
)
def test_a_wrong_value_is_refused_by_its_key(wrong: str, says: str) -> None:
    result = helm("template", "xylem", str(CHART), "-f", str(EXAMPLES["cpu"]), "--set", wrong)
    assert result.returncode != 0
    assert says in result.stderr


@pytest.mark.parametrize("example", EXAMPLES)
def test_xylem_reads_the_pools_as_they_were_given(example: str, tmp_path: Path) -> None:
    config = named(rendered(example), "ConfigMap", "xylem-pools")
    file = tmp_path / "pools.yaml"
    file.write_text(config["data"]["pools.yaml"])
    original_file = tmp_path / "given.yaml"
    original_file.write_text(yaml.safe_dump(yaml.safe_load(EXAMPLES[example].read_text())["poolsFile"]))
    assert load_pools(file) == load_pools(original_file)
    pool_names = {
        container["command"][-1] for container in containers(rendered(example)) if container["name"] == "worker"
    }
    assert pool_names == set(load_pools(file).pools)


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_variable_is_a_setting_that_can_be_read(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = rendered(example)
    settings = named(docs, "ConfigMap", "xylem-settings")["data"]
    own = {entry["name"] for container in containers(docs) for entry in container.get("env", [])}
    assert {f"XYLEM_{name.upper()}" for name in Settings.model_fields} >= settings.keys() | own
    more = {"planned": {"XYLEM_KUBERNETES_NAME"}, "disaggregated": {"XYLEM_GRPC_PORT"}}.get(example, set())
    assert own == {"XYLEM_REDIS_URL", "XYLEM_ADDRESS", "XYLEM_WORKER_PORT", "XYLEM_MEDIA_PORT"} | more
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert load_settings().pools_file == Path("/etc/xylem/pools.yaml")


def test_large_numbers_stay_whole() -> None:
    """Helm reads numbers of values as floats: 209715200 could become 2.097152e+08."""
    docs = rendered("cpu", "--set", "settings.XYLEM_MAX_FILE=209715200")
    assert named(docs, "ConfigMap", "xylem-settings")["data"]["XYLEM_MAX_FILE"] == "209715200"


def test_monitoring_brings_alerts_and_dashboards_and_the_names_that_they_look_for() -> None:
    docs, observability = rendered("disaggregated"), ROOT / "ops/observability"
    (rules,) = of_kind(docs, "PrometheusRule")
    assert rules["spec"] == yaml.safe_load((observability / "prometheus/rules.yml").read_text())
    dashboards = named(docs, "ConfigMap", "xylem-dashboards")["data"]
    assert dashboards == {path.name: path.read_text() for path in (observability / "grafana/dashboards").glob("*.json")}
    ends = [end for doc in of_kind(docs, "ServiceMonitor") for end in doc["spec"]["endpoints"]]
    ends += [end for doc in of_kind(docs, "PodMonitor") for end in doc["spec"]["podMetricsEndpoints"]]
    jobs = {label["replacement"] for end in ends for label in end["relabelings"] if label["targetLabel"] == "job"}
    scrape_configs = yaml.safe_load((observability / "prometheus/prometheus.yml").read_text())["scrape_configs"]
    assert jobs == {one["job_name"] for one in scrape_configs}


@pytest.mark.parametrize("example", EXAMPLES)
def test_what_points_at_pods_finds_them_and_their_ports(example: str) -> None:
    docs = rendered(example)
    for doc in docs:
        kind, spec = doc["kind"], doc.get("spec", {})
        aims: list[tuple[dict[str, str], list[Any]]] = []  # labels, and named ports
        if kind == "Service":
            aims = [(spec["selector"], [port["targetPort"] for port in spec["ports"]])]
        elif kind in ("Deployment", "StatefulSet", "PodDisruptionBudget"):
            aims = [(spec["selector"]["matchLabels"], [])]
        elif kind == "PodMonitor":
            aims = [(spec["selector"]["matchLabels"], [end["port"] for end in spec["podMetricsEndpoints"]])]
        elif kind == "NetworkPolicy":
            rules = spec.get("ingress", [])
            aims = [(spec["podSelector"]["matchLabels"], [p["port"] for rule in rules for p in rule.get("ports", [])])]
        elif kind == "ServiceMonitor":
            (service,) = (
                service for service in of_kind(docs, "Service")
                if spec["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
            )  # fmt: skip
            assert {end["port"] for end in spec["endpoints"]} <= {port["name"] for port in service["spec"]["ports"]}
        elif kind in ("HorizontalPodAutoscaler", "ScaledObject"):
            assert "replicas" not in named(docs, "Deployment", spec["scaleTargetRef"]["name"])["spec"]
        for labels, port_names in aims:
            templates = selected(docs, labels)
            assert templates, f"{kind} {doc['metadata']['name']} selects no pod"
            assert all(set(port_names) <= ports(pod) for pod in templates)
            if kind in ("Deployment", "StatefulSet"):
                assert templates == [spec["template"]]  # and no other's


@pytest.mark.parametrize("example", EXAMPLES)
def test_what_pods_refer_to_is_made_or_named_in_the_values(example: str) -> None:
    docs = rendered(example)
    objects = {(doc["kind"], doc["metadata"]["name"]) for doc in docs}
    values = EXAMPLES[example].read_text()
    references: set[tuple[str, str]] = set()
    for pod in pods(docs):
        for volume in pod["spec"]["volumes"]:
            for source, key, kind in (
                ("configMap", "name", "ConfigMap"),
                ("secret", "secretName", "Secret"),
                ("persistentVolumeClaim", "claimName", "PersistentVolumeClaim"),
            ):
                if source in volume:
                    references.add((kind, volume[source][key]))
        for container in pod["spec"]["containers"]:
            names = {volume["name"] for volume in pod["spec"]["volumes"]} | {"data"}  # of the StatefulSet's template
            assert {mount["name"] for mount in container["volumeMounts"]} <= names
            probes = [container[key] for key in container if key.endswith("Probe")]
            assert {(p.get("httpGet") or p["tcpSocket"])["port"] for p in probes} <= ports(pod)
            for source in container.get("envFrom", []):
                references |= {("ConfigMap", ref["name"]) for key, ref in source.items() if key == "configMapRef"}
                references |= {("Secret", ref["name"]) for key, ref in source.items() if key == "secretRef"}
            for entry in container.get("env", []):
                if ref := entry.get("valueFrom", {}).get("secretKeyRef"):
                    references.add(("Secret", ref["name"]))
                    if secrets := [d for d in of_kind(docs, "Secret") if d["metadata"]["name"] == ref["name"]]:
                        assert ref["key"] in secrets[0]["stringData"]
    assert {name for kind, name in references - objects if not re.search(rf"\b{name}\b", values)} == set()


@pytest.mark.parametrize("example", EXAMPLES)
def test_no_container_has_more_rights_than_it_needs(example: str) -> None:
    for pod in pods(rendered(example)):
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False  # a Service `xylem` would set XYLEM_PORT=tcp://…
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
            }  # fmt: skip


def test_grace_periods_and_probes_follow_from_the_settings() -> None:
    docs = rendered("cpu", "--set-json", 'settings={"XYLEM_DRAIN_TIMEOUT_S": 119.5, "XYLEM_STALL_S": 95}')
    grace = {
        pod["spec"]["containers"][0]["name"]: pod["spec"].get("terminationGracePeriodSeconds") for pod in pods(docs)
    }
    assert grace == {"api": 120 + 5 + 30, "batch": 120 + 30, "worker": 2 * 120 + 60, "valkey": None}
    (worker,) = (container for container in containers(docs) if container["name"] == "worker")
    assert worker["livenessProbe"]["failureThreshold"] * worker["livenessProbe"]["periodSeconds"] > 95
    assert named(docs, "ConfigMap", "xylem-settings")["data"]["XYLEM_DRAIN_TIMEOUT_S"] == "119.5"
    default = Settings.model_fields["drain_timeout_s"].default
    (api, *_) = (pod for pod in pods(rendered("cpu")) if "api" in pod["spec"]["containers"][0]["name"])
    assert api["spec"]["terminationGracePeriodSeconds"] == default + 5 + 30


def test_a_port_for_grpc_is_opened_where_it_is_given() -> None:
    """The port is in the container, its setting, the Service and the network policy."""
    port_names = {"cpu": [], "disaggregated": ["grpc"]}
    for example, names in port_names.items():
        docs = rendered(example)
        (api,) = (container for container in containers(docs) if container["name"] == "api")
        assert [p["name"] for p in api["ports"]] == ["http", *names, "media"]
        assert [e["value"] for e in api.get("env") or () if e["name"] == "XYLEM_GRPC_PORT"] == ["8001"] * len(names)
        service = named(docs, "Service", "xylem-api")["spec"]
        assert [p["name"] for p in service["ports"]] == ["http", *names]
        policy = named(docs, "NetworkPolicy", "xylem-api")["spec"]
        assert policy["ingress"][0]["ports"] == [{"port": name} for name in ("http", *names)]


def test_another_models_pool_restarts_no_worker() -> None:
    before = rendered("cpu", "--set", "valkey.seed=" + "s" * 24)
    extra = "poolsFile.pools.pool-b.model=other,poolsFile.pools.pool-b.engine=mock"
    after = rendered("cpu", "--set", f"valkey.seed={'s' * 24},{extra}")
    changed_pods = {pod["spec"]["containers"][0]["name"] for pod in pods(before) if pod not in pods(after)}
    assert changed_pods == {"api", "batch", "valkey"}


def test_an_engine_over_hosts_is_a_group_of_as_many_pods_and_scales_by_engines() -> None:
    """All of its pods are alike: they find out themselves which of them leads."""
    keda = '{"minReplicas": 1, "maxReplicas": 2, "triggers": [{"type": "cpu", "metadata": {"value": "50"}}]}'
    docs = rendered("one-engine-on-two-hosts", "--set-json", f"workers.decode-pool-a.keda={keda}")
    spec = named(docs, "LeaderWorkerSet", "xylem-decode-pool-a")["spec"]
    assert spec["leaderWorkerTemplate"]["size"] == 2
    assert spec["leaderWorkerTemplate"].keys() == {"size", "restartPolicy", "workerTemplate"}
    assert "replicas" not in spec
    target = named(docs, "ScaledObject", "xylem-decode-pool-a")["spec"]["scaleTargetRef"]
    assert target == {
        "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": "xylem-decode-pool-a"
    }  # fmt: skip
    assert not [doc for doc in of_kind(docs, "Deployment") if "pool" in doc["metadata"]["name"]]


def test_roles_over_hosts_are_groups_of_their_own() -> None:
    """Sixteen GPUs for each role: two pods of eight."""
    sets = of_kind(rendered("apart-on-four-hosts"), "LeaderWorkerSet")
    templates = {doc["metadata"]["name"]: doc["spec"]["leaderWorkerTemplate"] for doc in sets}
    assert templates.keys() == {"xylem-prefill-pool-a", "xylem-decode-pool-a"}
    for template in templates.values():
        (container,) = template["workerTemplate"]["spec"]["containers"]
        assert (template["size"], container["resources"]["limits"]["nvidia.com/gpu"]) == (2, 8)


def test_the_ports_that_the_guide_lists_are_those_that_the_policies_open() -> None:
    """docs/guide/security.md: each port of a pod, and who is let in."""
    guide = (ROOT / "docs/guide/security.md").read_text().partition("## Ports")[2]
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` (\d+).*\| (.*?) \|$", guide, re.MULTILINE)
    docs = rendered(
        "cpu", "--set", "flower.enabled=true,flower.envSecret=s", "--set-json",
        'networkPolicy={"apiFrom": [{"id": "apiFrom"}], "metricsFrom": [{"id": "metricsFrom"}], '
        '"flowerFrom": [{"id": "flowerFrom"}]}',
    )  # fmt: skip
    label = "app.kubernetes.io/component"
    pod_ports = {
        (pod["metadata"]["labels"][label], port["name"], str(port["containerPort"]))
        for pod in pods(docs)
        for container in pod["spec"]["containers"]
        for port in container.get("ports", [])
    }
    assert {(of, name, number) for of, name, number, _ in rows} == pod_ports
    let_in = {of: set[str]() for of, *_ in rows}
    for of, _, _, who in rows:
        let_in[of] |= {*re.findall(r"`(\w+From)`", who)}
    for policy in of_kind(docs, "NetworkPolicy"):
        rules = policy["spec"].get("ingress", [])
        peers = [peer for rule in rules for peer in rule.get("from", [])]
        component = policy["spec"]["podSelector"]["matchLabels"][label]
        assert {peer["id"] for peer in peers if "id" in peer} == let_in[component], component
        pods_let_in = {peer["podSelector"]["matchLabels"][label] for peer in peers if "podSelector" in peer}
        assert pods_let_in == {
            "api": {"worker"},
            "batch": {"worker"},
            "worker": {"worker"},
            "valkey": {"api", "worker", "batch", "flower", "planner", "usage"},
        }.get(component, set())
        assert "ports" not in rules[0] if component == "worker" else all("ports" in rule for rule in rules)


def test_the_planner_may_scale_the_planned_pools_and_nothing_else_sets_how_many_workers_they_have() -> None:
    docs = rendered("planned")
    (role,) = of_kind(docs, "Role")
    deployment_names = {name for rule in role["rules"] for name in rule.get("resourceNames", [])}
    assert deployment_names == {"xylem-decode-pool-a"}
    assert "replicas" not in named(docs, "Deployment", "xylem-decode-pool-a")["spec"]
    (binding,) = of_kind(docs, "RoleBinding")
    planner = named(docs, "Deployment", "xylem-planner")["spec"]["template"]["spec"]
    assert binding["subjects"][0]["name"] == planner["serviceAccountName"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    account = next(mount for mount in planner["containers"][0]["volumeMounts"] if mount["name"] == "account")
    assert account["mountPath"] == str(ACCOUNT)


def test_the_planner_may_mark_the_pods_of_the_planned_pools_and_change_nothing_else_of_any() -> None:
    """A Role that may patch pods may patch all of a namespace; a policy of the cluster bounds that."""
    docs = rendered("planned")
    (role,) = of_kind(docs, "Role")
    assert [rule["verbs"] for rule in role["rules"] if "pods" in rule["resources"]] == [["list", "patch"]]
    (policy,) = of_kind(docs, "ValidatingAdmissionPolicy")
    (binding,) = of_kind(docs, "ValidatingAdmissionPolicyBinding")
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    assert (policy["spec"]["failurePolicy"], binding["spec"]["validationActions"]) == ("Fail", ["Deny"])
    (who,) = policy["spec"]["matchConditions"]
    account = named(docs, "Deployment", "xylem-planner")["spec"]["template"]["spec"]["serviceAccountName"]
    assert who["expression"] == f"request.userInfo.username == 'system:serviceaccount:default:{account}'"
    which, what = (rule["expression"] for rule in policy["spec"]["validations"])
    pod = named(docs, "Deployment", "xylem-decode-pool-a")["spec"]["template"]["metadata"]["labels"]
    assert f"'{pod['app.kubernetes.io/instance']}'" in which
    assert which.endswith(f"['xylem/pool'] in ['{pod['xylem/pool']}']")
    assert what == "object.spec == oldObject.spec && object.metadata.labels == oldObject.metadata.labels"


def test_the_usage_writer_and_the_api_have_the_same_database_and_requests_are_recorded() -> None:
    docs = rendered("cpu", "--set", "usage.enabled=true,usage.urlSecret=sql")
    for name in ("xylem-usage", "xylem-api"):
        (container,) = named(docs, "Deployment", name)["spec"]["template"]["spec"]["containers"]
        (variable,) = [one for one in container["env"] if one["name"] == "XYLEM_USAGE_URL"]
        assert variable["valueFrom"]["secretKeyRef"] == {"name": "sql", "key": "XYLEM_USAGE_URL"}
    assert named(docs, "ConfigMap", "xylem-settings")["data"]["XYLEM_USAGE"] == "true"
    assert named(rendered("cpu"), "ConfigMap", "xylem-settings")["data"]["XYLEM_USAGE"] == "false"


def test_a_planner_that_only_advises_has_no_rights() -> None:
    docs = rendered("planned", "--set", "planner.act=false")
    assert of_kind(docs, "Role", "RoleBinding", "ServiceAccount", "ValidatingAdmissionPolicy") == []
    assert (
        "--act"
        not in named(docs, "Deployment", "xylem-planner")["spec"]["template"]["spec"]["containers"][0]["command"]
    )
    assert named(docs, "Deployment", "xylem-decode-pool-a")["spec"]["replicas"] == 1


def test_keda_and_the_planner_dont_scale_one_pool() -> None:
    keda = '{"minReplicas": 1, "maxReplicas": 2, "triggers": [{"type": "cpu", "metadata": {}}]}'
    result = helm(
        "template",
        "xylem",
        str(CHART),
        "-f",
        str(EXAMPLES["planned"]),
        "--set-json",
        f"workers.decode-pool-a.keda={keda}",
    )
    assert result.returncode != 0
    assert "workers.decode-pool-a.keda" in result.stderr
