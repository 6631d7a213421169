"""A Redis Cluster of three nodes: commands go to the nodes of their keys, also while slots move and nodes die."""

import asyncio
import shutil
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import RedisError

from app.errors import StoreDown
from app.ids import ApiId, PoolId, RequestId
from app.keys import Keys
from app.store import Wire, async_client, clock, sync_client
from app.store.cluster_nodes import slot_of
from tests.background import beside, until
from tests.cluster import Cluster, Node, redis_cluster
from tests.stack import ROOT, stop, wait_until
from tests.wires import connected

ACL = ROOT / "ops" / "acl" / "redis-acl.conf"
HOME = "{home}:x"
TAGS = [f"{{t{i}}}:" for i in range(30)]  # on all nodes


@pytest.fixture(scope="module", params=["valkey", "redis"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    server = shutil.which("redis-server") if request.param == "redis" else None
    with redis_cluster(tmp_path_factory.mktemp("cluster"), server) as running_cluster:
        yield running_cluster
        running_cluster.flush()


async def test_commands_of_one_list_go_to_all_nodes_and_replies_are_in_their_order(cluster: Cluster) -> None:
    async with connected(cluster.url, HOME) as (_, wire):
        assert await wire.execute([("SET", f"{tag}x", tag) for tag in TAGS]) == [b"OK"] * len(TAGS)
        assert all(len(keys) > 3 for keys in cluster.keys_of_nodes())
        commands = [("GET", f"{tag}x") for tag in TAGS]
        assert await wire.execute([*commands, ("TIME",)])
        assert (await wire.execute(commands)) == [tag.encode() for tag in TAGS]
        replies = await wire.execute_each([("GET", "{t1}:x"), ("HGET", "{t2}:x", "y"), ("MGET", "{t1}:x", "{t2}:x")])
        assert [isinstance(reply, StoreDown) for reply in replies] == [False, True, True]


async def test_a_slot_that_moves_is_followed_key_by_key_and_afterwards(cluster: Cluster) -> None:
    """The same connection follows it: nothing else notices."""
    async with connected(cluster.url, HOME) as (_, wire):
        slot = slot_of("{t1}:")
        before = cluster.node_of(slot)
        to = next(node for node in cluster.nodes if node is not before)
        await wire.execute([("SET", f"{tag}x", tag) for tag in TAGS])
        connection = await wire.connection()
        cluster.begin_move(slot, to)
        assert await wire.execute([("SET", "{t1}:new", "n"), ("GET", "{t1}:x")]) == [b"OK", b"{t1}:"]
        assert to.client.keys() is not None
        cluster.end_move(slot, to)
        assert await wire.execute([("GET", f"{tag}x") for tag in TAGS]) == [tag.encode() for tag in TAGS]
        assert await wire.execute([("GET", "{t1}:new")]) == [b"n"]
        assert cluster.node_of(slot) is to
        assert await wire.connection() is connection


async def test_a_subscription_follows_its_slot(cluster: Cluster) -> None:
    messages: list[Any] = []
    async with connected(cluster.url, HOME) as (_, wire):
        channel = "{t2}:out"
        slot = slot_of(channel)
        to = next(node for node in cluster.nodes if node is not cluster.node_of(slot))
        first = await wire.subscribe(channel, messages.append)
        await until(lambda: messages)
        assert await wire.execute([(wire.publish, channel, "one")]) == [1]
        cluster.begin_move(slot, to)
        cluster.end_move(slot, to)
        await until(lambda: first.is_closed)
        second = await wire.subscribe(channel, messages.append)
        async with asyncio.timeout(10):
            while not await wire.execute([(wire.publish, channel, "two")]) == [1]:  # noqa: SIM201 (an answer that comes once)
                await asyncio.sleep(0.01)
            while messages[-1][-1] != b"two":
                await asyncio.sleep(0.01)
        assert [reply[2] for reply in messages if reply[0] == b"smessage"] == [b"one", b"two"]
        second.close()


async def test_a_dead_node_fails_its_own_commands_soon_and_no_others(cluster: Cluster) -> None:
    """Others go on over the connections that they have; when it is back, so do its own."""
    async with connected(cluster.url, HOME) as (_, wire):
        node = cluster.node_of(slot_of("{t3}:"))
        others = [tag for tag in TAGS if cluster.node_of(slot_of(tag)) is not node]
        await wire.execute([("SET", f"{tag}x", tag) for tag in TAGS])
        replies = count()

        async def others_are_answered() -> None:
            while True:
                assert await wire.execute([("GET", f"{tag}x") for tag in others]) == [tag.encode() for tag in others]
                next(replies)

        async with beside(others_are_answered()):
            node.kill()
            async with asyncio.timeout(10):
                with pytest.raises(StoreDown):
                    await wire.execute([("GET", "{t3}:x")])
            for _ in range(5):
                with pytest.raises(StoreDown):
                    await wire.execute([("GET", "{t3}:x")])
            reply_count = next(replies)
            await until(lambda: next(replies) >= reply_count + 5)
            node.start()
            await asyncio.to_thread(wait_until, cluster.is_whole, "the node is back")
            await until(lambda: stored(wire, "{t3}:x"), 30)


async def stored(wire: Wire, key: str) -> bool:
    try:
        return await wire.execute([("SET", key, "x")]) == [b"OK"]
    except StoreDown:
        return False


async def test_a_node_that_hangs_is_an_error_and_no_wait_for_ever(cluster: Cluster) -> None:
    async with connected(cluster.url, HOME, timeout_s=0.3) as (_, wire):
        node = cluster.node_of(slot_of("{t4}:"))
        await wire.execute([("SET", "{t4}:x", "x")])
        node.process.send_signal(signal.SIGSTOP)
        try:
            async with asyncio.timeout(20):
                with pytest.raises(StoreDown):
                    await wire.execute([("GET", "{t4}:x")])
        finally:
            node.process.send_signal(signal.SIGCONT)
        await asyncio.to_thread(wait_until, cluster.is_whole, "the node is back")


async def test_a_lost_connection_is_noticed_by_who_asks_for_the_same_one(cluster: Cluster) -> None:
    """A worker thus sends again what a node may have forgotten."""
    async with connected(cluster.url, HOME) as (_, wire):
        await wire.execute([("SET", f"{tag}x", tag) for tag in TAGS])
        before = await wire.connection()
        assert await wire.execute_on(before, [("GET", "{t1}:x")]) == [b"{t1}:"]
        assert await wire.connection() is before
        for node in cluster.nodes[:1]:
            node.client.client_kill_filter(_type="normal", skipme=True)
        await until(lambda: before.is_closed)
        with pytest.raises(StoreDown):
            await wire.execute_on(before, [("GET", "{t1}:x")])
        after = await wire.connection()
        assert after is not before
        assert await wire.execute_on(after, [("GET", f"{tag}x") for tag in TAGS]) == [tag.encode() for tag in TAGS]


async def test_the_clock_is_that_of_the_node_that_has_the_fleet(cluster: Cluster) -> None:
    async with connected(cluster.url, HOME) as (_, wire):
        keys = Keys("test", clustered=True)
        await clock.ask(wire, keys)
        node = cluster.node_of(slot_of(keys.home))
        seconds, _ = node.client.time()
        assert abs(clock.now() - seconds) < 5


def test_a_client_that_asks_once_knows_clusters(cluster: Cluster) -> None:
    with sync_client(cluster.url, 2, "{once}:x") as client:
        assert client.execute_command("EVAL", "return redis.call('INCR', KEYS[1])", 1, "{once}:x")
        assert client.ping()


async def test_redis_own_client_talks_to_the_node_of_its_slot_and_follows_it(cluster: Cluster) -> None:
    """The client uses transactions, pipelines and blocking commands, as the admin endpoints do."""
    slot = slot_of(HOME)
    async with connected(cluster.url, HOME) as (client, _):
        for number in range(3):
            assert await client.incr("{home}:n") == number + 1

            async def change(pipe: Any) -> str:
                before = await pipe.get("{home}:m")
                pipe.multi()
                pipe.set("{home}:m", int(before or 0) + 1)
                return "changed"

            assert await client.transaction(change, "{home}:m", value_from_callable=True) == "changed"
            pipe = client.pipeline(transaction=True)
            pipe.get("{home}:m")
            pipe.hset("{home}:h", mapping={"x": 1})
            pipe.hgetall("{home}:h")
            value, _, fields = await pipe.execute()
            assert (value, fields) == (str(number + 1).encode(), {b"x": b"1"})
            await client.rpush("{home}:list", "one")
            assert await client.blpop(["{home}:list"], timeout=1) == (b"{home}:list", b"one")
            to = next(node for node in cluster.nodes if node is not cluster.node_of(slot))
            cluster.begin_move(slot, to)
            cluster.end_move(slot, to)


async def test_a_cluster_of_which_no_node_answers_is_an_error_of_redis() -> None:
    """The error is that of a single server: callers catch the same."""
    client = async_client("cluster://127.0.0.1:1,127.0.0.1:2")
    wire = Wire(client)
    with pytest.raises(StoreDown):
        await wire.execute([("GET", "x")])
    with pytest.raises((RedisError, OSError)):
        await client.get("x")
    await client.aclose()


async def test_a_node_that_dies_is_replaced_by_its_replica(tmp_path: Path) -> None:
    """The Wire and redis-py's client find it; and who asks for the same connection notices."""
    with redis_cluster(tmp_path / "nodes") as cluster:
        dies = cluster.node_of(slot_of(HOME))
        replica = Node(tmp_path / "replica", dies.server)
        try:
            cluster.add_replica(dies, replica)
            async with connected(cluster.url, HOME) as (client, wire):
                assert await wire.execute([("SET", HOME, "x")])
                before = await wire.connection()
                dies.kill()
                await until(lambda: stored(wire, HOME), 30)
                assert await client.get(HOME) == b"x"
                assert before.is_closed
                assert replica.client.get(HOME) == b"x"
        finally:
            stop(replica.process)


async def test_the_users_of_the_acl_file_work_on_a_cluster_as_its_head_says(cluster: Cluster) -> None:
    """The users still have no rights to other names."""
    (rule,) = [line for line in ACL.read_text().splitlines() if line.startswith("user xylem-api ")]
    rule = rule.replace("<API_PASSWORD>", "secret").replace("~xylem:", "~{xylem*}:").replace("&xylem:", "&{xylem*}:")
    _, name, *rights = rule.split()
    selector = [i for i, right in enumerate(rights) if right.startswith("(")]
    rights[selector[0] :] = [" ".join(rights[selector[0] :])]
    for node in cluster.nodes:
        node.client.execute_command("ACL", "SETUSER", name, *rights, "+cluster|slots")
    keys = Keys("xylem", clustered=True)
    url = cluster.url.replace("://", f"://{name}:secret@")
    async with connected(url, keys.home) as (client, wire):
        api, pool = ApiId("a"), PoolId("p")
        commands = [
            ("SET", keys.api(api), "1"),
            ("HGETALL", keys.cached(pool)[0]),
            ("XRANGE", keys.out(api), "-", "+"),
            ("TIME",),
        ]
        assert await wire.execute([*commands, ("HGETALL", keys.kept(RequestId("r")))])
        messages: list[Any] = []
        channel = await wire.subscribe(keys.out(api), messages.append)
        await until(lambda: messages, 5)
        assert messages[0][0] == b"ssubscribe"
        assert await client.exists(keys.api(api)) == 1
        (refusal,) = await wire.execute_each([("GET", "{other}:api:a")])
        assert isinstance(refusal, StoreDown)
        channel.close()
