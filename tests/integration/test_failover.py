"""Clients of a Redis that Sentinels watch are always with the present master."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from app.cli.checks import run_checks
from app.cli.probes import redis_problem
from app.errors import StoreDown
from app.store import Wire, async_client, sync_client
from tests.sentinels import PASSWORD, Watched, watched


@pytest_asyncio.fixture(params=["plain", "tls"])
async def watch(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Watched]:
    with watched(tmp_path, sentinels=1, tls=request.param == "tls") as w:
        yield w


@pytest_asyncio.fixture
async def client(watch: Watched) -> AsyncIterator["Redis"]:
    c = async_client(watch.url)
    yield c
    await c.aclose()


async def until_it_writes(wire: Wire) -> None:
    """Waits until the wire writes, like a client that is told to try again."""
    async with asyncio.timeout(20):
        while True:
            try:
                await wire.execute([("SET", "k", "new")])
            except StoreDown:
                await asyncio.sleep(0.1)
            else:
                return


async def test_a_dead_masters_clients_go_to_the_new_one(watch: Watched, client: "Redis") -> None:
    """Both kinds, and what was written before is there."""
    wire = Wire(client)
    await wire.execute([("SET", "before", "1")])
    await client.wait(1, 1000)
    old = watch.master
    watch.kill(old)
    await until_it_writes(wire)
    assert await client.get("k") == b"new"
    assert await client.get("before") == b"1"
    assert watch.master != old
    wire.close()


async def test_a_client_of_a_master_that_has_become_a_replica_leaves_it(watch: Watched, client: "Redis") -> None:
    """Its connection is alive, and all that it would be told there is that nobody may write."""
    wire = Wire(client)
    await wire.execute([("SET", "k", "old")])
    await client.set("k", "old")
    (other,) = (port for port in watch.servers if port != watch.master)
    with watch.client(other) as replica, watch.client(watch.master) as master:
        replica.replicaof("NO", "ONE")
        master.replicaof("127.0.0.1", other)
        watch.ask("SENTINEL", "REMOVE", "the-master")
        watch.ask("SENTINEL", "MONITOR", "the-master", "127.0.0.1", other, 1)
        watch.ask("SENTINEL", "SET", "the-master", "auth-pass", PASSWORD)
        await until_it_writes(wire)
        await client.set("j", "new")
        replica.select(1)
        assert replica.mget("k", "j") == [b"new", b"new"]
    wire.close()


def test_the_command_line_finds_the_master(watch: Watched) -> None:
    """The command says in a few words when nobody knows a master."""
    assert redis_problem(watch.url) is None
    with sync_client(watch.url, 1) as master_client:
        assert master_client.info("replication")["role"] == "master"
    (finding,) = (c.found for c in run_checks(watch.url, None) if c.name == "Redis")
    assert f"at {watch.url.partition('://')[0]}://127.0.0.1:" in finding
    assert PASSWORD not in finding
    assert redis_problem(watch.url.replace("the-master", "nobody")) == "No master found for 'nobody'"
    if watch.ca:
        assert redis_problem(watch.url.partition("&ssl_ca_certs")[0]), "whose certificate nobody knows"
    for port in watch.sentinels:
        watch.kill(port)
    assert redis_problem(watch.url) == "No master found for 'the-master'"
