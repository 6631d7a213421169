"""LoRA adapters on engines that span several hosts, with the mock: each host has the files first."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from app.messages.group import Member
from tests.acceptance.test_groups import POOL, members
from tests.lora import tiny_adapter
from tests.stack import Stack, leases, mock_pool, stack, wait_until


@contextmanager
def grouped(valkey_url: str, path: Path, **follower: str) -> Iterator[Stack]:
    """`follower`: settings of the second host that are not the first one's."""
    pools = {POOL: mock_pool(step_ms=1.0, max_adapters=2) | {"nodes": 2, "tensor_parallel_size": 2}}
    env = {"XYLEM_DEPLOYMENT": path.name, "XYLEM_WORKER_PORT": "0", "XYLEM_LORA_SOURCES": str(path)}
    with stack(valkey_url, path, pools, XYLEM_LORA_STORE=str(path / "store"), **env) as s:
        s.api()
        s.worker(name="a")
        wait_until(lambda: "waiting_for_members" in s.log("a"), "it came first, and leads")
        s.worker(name="b", **follower)
        wait_until(lambda: leases(s), "a leader takes requests")
        s.wait_ready()
        yield s


def added(s: Stack, name: str) -> Any:
    source = str(tiny_adapter(s.directory / "sources" / name, f"weights {name}"))
    reply = httpx.post(f"{s.url}/admin/loras", json={"name": name, "source": source, "model": "mock"}, timeout=60)
    assert reply.status_code == 200, reply.text
    return reply.json()


def roles(s: Stack) -> tuple[Member, Member]:
    leader, follower = sorted(members(s), key=lambda member: not member.ready)
    return leader, follower


def test_each_host_has_an_adapter_as_long_as_the_engine_does(valkey_url: str, tmp_path: Path) -> None:
    with grouped(valkey_url, tmp_path) as s:
        for name in ("one", "two"):
            assert added(s, name)["workers"] == [leases(s)[0].worker.id]
            leader, follower = roles(s)
            names = [adapter.versioned for adapter in leader.adapters]
            assert names[-1].startswith(f"{name}@")
            assert follower.has_adapters == names
            assert not follower.lacks_adapters
            body = {"model": name, "prompt": "Once", "max_tokens": 4}
            assert httpx.post(f"{s.url}/v1/completions", json=body, timeout=60).status_code == 200
        httpx.delete(f"{s.url}/admin/loras/one", timeout=60).raise_for_status()
        wait_until(lambda: len(roles(s)[1].has_adapters) == 1, "the other host keeps it no longer")
        assert "two@" in roles(s)[1].has_adapters[0]


def test_what_a_host_can_not_have_the_engine_does_not_get(valkey_url: str, tmp_path: Path) -> None:
    """The reason names the host, and the engine goes on without it."""
    other = str(tmp_path / "other")
    with grouped(valkey_url, tmp_path, XYLEM_LORA_STORE=other) as s:
        answer = added(s, "one")
        assert not answer["workers"]
        (reason,) = answer["failed"].values()
        expected_reason = f"XYLEM_LORA_STORE is {other}, and {tmp_path}/store where the engine is led."
        assert reason == f"On the host {roles(s)[1].address}: {expected_reason}"
        wait_until(lambda: not roles(s)[0].adapters, "the leader asks for it no longer")
        body = {"model": "mock", "prompt": "Once", "max_tokens": 4}
        assert httpx.post(f"{s.url}/v1/completions", json=body, timeout=60).status_code == 200
