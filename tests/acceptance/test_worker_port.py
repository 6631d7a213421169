"""Workers' own ports: what Prometheus finds, scrapes and probes, of real processes with the mock engine."""

import json
import signal
import time
from collections.abc import Iterator
from unittest.mock import MagicMock

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.ids import BATCH_QUEUE
from app.messages.lease import EngineState
from tests.serving import begin
from tests.stack import Stack, free_port, leases, mock_pool, pid_of_worker, stack, stop, valkey, wait_until
from workers.engine.hang_watchdog import HangWatchdog
from workers.engine.lease import LeaseKeeper
from workers.engine.registered import RegisteredEngine
from workers.worker_port import WorkerPort

POOL = "decode-pool-a"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two workers of one host and a batch worker, with a free port each."""
    path = tmp_path_factory.mktemp("ports")
    with valkey(path) as url, stack(url, path, {POOL: mock_pool()}) as s:
        begin(s, {"one": POOL, "two": POOL, "batch": BATCH_QUEUE}, XYLEM_WORKER_PORT="0")
        wait_until(lambda: targets(s, BATCH_QUEUE), "the batch worker tells of its port", 60)
        yield s


def targets(s: Stack, pool: str = POOL) -> dict[str, str]:
    """Worker → where its port is, as Prometheus is told."""
    answer = httpx.get(f"{s.url}/sd")
    assert answer.headers["content-type"] == "application/json"
    addresses: dict[str, str] = {}
    for target in answer.json():
        assert target["labels"].keys() == {"pool", "worker"}
        assert target["labels"]["pool"] in (POOL, BATCH_QUEUE)
        if target["labels"]["pool"] == pool:
            (addresses[target["labels"]["worker"]],) = target["targets"]
    return addresses


def test_prometheus_finds_each_worker_and_its_metrics_once(served: Stack) -> None:
    ports = targets(served)
    assert ports.keys() == {lease.worker.id for lease in leases(served, POOL)}
    assert len(set(ports.values())) == len(ports) == 2
    for worker, at in ports.items():
        families = list(text_string_to_metric_families(httpx.get(f"http://{at}/metrics").text))
        names = [family.name for family in families]
        assert len(names) == len(set(names))
        (seats,) = (family for family in families if family.name == "xylem_worker_seats")
        assert [sample.labels for sample in seats.samples] == [{"pool": POOL, "worker": worker}]
        assert "process_resident_memory_bytes" in names
        assert not any(name.startswith("xylem_") and not name.startswith("xylem_worker_") for name in names)


def test_a_port_says_whether_its_worker_lives_and_takes_requests(served: Stack) -> None:
    worker, at = targets(served).popitem()
    for check in ("live", "ready"):
        answer = httpx.get(f"http://{at}/{check}")
        assert (answer.status_code, answer.json()[check]) == (200, True)
    assert httpx.get(f"http://{at}/admin").status_code == 404
    httpx.post(f"{served.url}/admin/pools/{POOL}/pause", json={"mode": "wait"}).raise_for_status()
    not_ready = httpx.get(f"http://{at}/ready")
    httpx.post(f"{served.url}/admin/pools/{POOL}/resume", json={}).raise_for_status()
    assert (not_ready.status_code, not_ready.json()) == (503, {"ready": False, "state": "paused"})
    wait_until(lambda: httpx.get(f"http://{at}/ready").status_code == 200, f"{worker} takes requests again")


def test_a_batch_worker_has_a_port_too(served: Stack) -> None:
    """The sums of its event loop and of what tenants used are there; others that a replica counts stay out."""
    ((_, at),) = targets(served, BATCH_QUEUE).items()
    families = list(text_string_to_metric_families(httpx.get(f"http://{at}/metrics").text))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    assert "process_resident_memory_bytes" in names
    own = {name.removesuffix("_created") for name in names if name.startswith("xylem_")}
    usage_names = {f"xylem_tenant_{what}" for what in ("requests", "tokens", "engine_seconds")}
    assert own == {"xylem_loop_delay_seconds", "xylem_loop_failures", "xylem_usage_lost", *usage_names}
    for check in ("live", "ready"):
        answer = httpx.get(f"http://{at}/{check}")
        assert (answer.status_code, answer.json()[check]) == (200, True)


def test_a_batch_worker_that_is_gone_is_no_target_and_one_without_its_port_does_not_start(served: Stack) -> None:
    ((worker, at),) = targets(served, BATCH_QUEUE).items()
    served.names["batch"].send_signal(signal.SIGKILL)
    wait_until(lambda: not targets(served, BATCH_QUEUE), f"{worker} at {at} is forgotten")
    port_in_use = next(iter(targets(served).values())).rpartition(":")[2]
    second = served.worker(BATCH_QUEUE, "another batch", XYLEM_WORKER_PORT=port_in_use)
    wait_until(lambda: second.poll() is not None, "it ends")
    assert second.returncode == 1
    assert "XYLEM_WORKER_PORT" in served.log("another batch")


def test_a_worker_whose_port_is_taken_does_not_start(served: Stack) -> None:
    port_in_use = next(iter(targets(served).values())).rpartition(":")[2]
    second = served.worker(POOL, "third", XYLEM_WORKER_PORT=port_in_use)
    wait_until(lambda: second.poll() is not None, "it ends")
    assert second.returncode == 1
    assert "XYLEM_WORKER_PORT" in served.log("third")


def test_a_worker_without_a_port_is_no_target(served: Stack) -> None:
    without = served.worker(POOL, "without")
    served.wait_ready(3)
    assert len(targets(served)) == 2
    stop(without)
    served.wait_ready(2)


def test_a_worker_that_drains_lives_and_is_not_ready(served: Stack) -> None:
    body = {"model": "mock", "prompt": "x", "max_tokens": 2000, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{served.url}/v1/completions", json=body, timeout=60) as answer:
        lines = answer.iter_lines()  # the answer goes on for as long as this is not closed
        first = next(lines)
        pid = pid_of_worker(served, POOL, json.loads(first.removeprefix("data: "))["id"])
        (lease,) = (lease for lease in leases(served, POOL) if lease.worker.pid == pid)
        psutil.Process(pid).send_signal(signal.SIGTERM)
        at = lease.worker.metrics_at
        wait_until(lambda: httpx.get(f"http://{at}/ready").json() == {"ready": False, "state": "draining"}, "it drains")
        assert httpx.get(f"http://{at}/live").status_code == 200


@pytest.fixture
def port() -> Iterator[WorkerPort]:
    port = WorkerPort("127.0.0.1", free_port())
    yield port
    port.close()


def test_a_worker_that_loads_its_model_lives_and_is_not_ready(port: WorkerPort) -> None:
    assert httpx.get(f"http://{port.at}/live").status_code == 200
    answer = httpx.get(f"http://{port.at}/ready")
    assert (answer.status_code, answer.json()["state"]) == (503, "loading")


def test_a_worker_whose_event_loop_hangs_is_not_live(port: WorkerPort) -> None:
    """The probe itself is answered at once."""
    watchdog = HangWatchdog(MagicMock(), MagicMock(), 60)
    port.loaded(RegisteredEngine(MagicMock(LeaseKeeper, stays_out=False, state=EngineState()), watchdog))
    assert httpx.get(f"http://{port.at}/live").status_code == 200
    watchdog._turned = time.monotonic() - 10
    assert httpx.get(f"http://{port.at}/live").json() == {"live": False, "state": "hanging"}


def test_a_port_of_ipv6_is_written_as_prometheus_wants_it() -> None:
    port = WorkerPort("::1", 0)
    try:
        assert port.at.startswith("[::1]:")
        assert httpx.get(f"http://{port.at}/live").status_code == 200
    finally:
        port.close()
