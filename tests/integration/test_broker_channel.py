"""The broker's messages are taken several at once: as many as there is room for, in their order, and none is lost."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from kombu import Consumer, Queue
from kombu.asynchronous import Hub
from redis import Redis

from app.broker_channel import AtOnce, BrokerConnection
from tests.stack import wait_until

pytestmark = pytest.mark.both_servers

QUEUE = Queue("pool.w1", no_declare=True)


class Broker:
    def __init__(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.redis = Redis.from_url(url)
        self.redis.flushall()
        self.redis.config_resetstat()
        options = {"global_keyprefix": "test:", "priority_steps": [0, 3, 6, 9], "queue_order_strategy": "priority"}
        self.connection = BrokerConnection(url, transport_options=options)
        self.got: list[int] = []
        monkeypatch.setattr(AtOnce, "room", self.room)
        self.most = 1000

    def room(self) -> int:
        return self.most - len(self.got)

    def take(self, body: int, _message: Any) -> None:
        if body < 0:
            raise (ConnectionError if body == -1 else LookupError)(body)
        self.got.append(body)

    def publish(self, *bodies: int, priority: int = 0) -> None:
        with self.connection.Producer() as producer:
            for body in bodies:
                producer.publish(body, routing_key=QUEUE.name, priority=priority, serializer="json")

    def consumer(self) -> Consumer:
        return Consumer(self.connection, [QUEUE], callbacks=[self.take], no_ack=True, accept=["json"])

    @property
    def trips(self) -> int:
        return int(self.redis.info("commandstats")["cmdstat_blmpop"]["calls"])  # type: ignore[index]


@pytest.fixture
def broker(store_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    instance = Broker(store_url, monkeypatch)
    yield instance
    instance.connection.release()
    instance.redis.close()


def test_all_that_wait_come_with_one_round_trip(broker: Broker) -> None:
    broker.publish(*range(50))
    with broker.consumer():
        broker.connection.drain_events(timeout=5)
    assert broker.got == list(range(50))
    assert broker.trips == 1


def test_what_there_is_no_room_for_stays_in_redis(broker: Broker) -> None:
    """The messages can be taken back there."""
    broker.most = 4
    broker.publish(*range(10))
    with broker.consumer():
        broker.connection.drain_events(timeout=5)
        assert broker.got == [0, 1, 2, 3]
        assert broker.redis.llen("test:pool.w1") == 6
        broker.most = 6
        broker.connection.drain_events(timeout=5)
    assert broker.got == [0, 1, 2, 3, 4, 5]


def test_urgent_messages_come_first(broker: Broker) -> None:
    broker.publish(1, 2, priority=9)
    broker.publish(3, 4, priority=0)
    with broker.consumer():
        broker.connection.drain_events(timeout=5)
        broker.connection.drain_events(timeout=5)
    assert broker.got == [3, 4, 1, 2]


def test_a_message_that_cannot_be_taken_takes_no_other_with_it_and_ends_no_process(broker: Broker) -> None:
    """Such a message is one whose body Celery can't take apart.

    A connection that fails as a message is taken is made anew.
    """
    broker.publish(1, -2, 3)
    with broker.consumer():
        broker.connection.drain_events(timeout=5)
        assert broker.got == [1, 3]
        broker.publish(4, -1, 5)
        with pytest.raises(ConnectionError):
            broker.connection.drain_events(timeout=5)
    assert broker.got == [1, 3, 4, 5]


@pytest.mark.parametrize(
    "junk",
    [
        pytest.param(b"[" * 100_000, id="deep"), b'{"__type__": "decimal", "__value__": "x"}',
        b"{no json", b"\xff", b"[1]", b"{}", b'{"body": "e30=", "properties": {}}',
        b'{"properties": {"delivery_tag": "1", "delivery_info": null}}',
        b'{"body": "=", "properties": {"body_encoding": "base64", "delivery_tag": "1", "delivery_info": {}}}',
    ],
)  # fmt: skip
def test_what_is_no_message_ends_no_process_and_takes_no_message_with_it(broker: Broker, junk: bytes) -> None:
    """Celery would end the worker, and so the next one that gets it."""
    broker.publish(1)
    broker.redis.lpush("test:pool.w1", junk)
    broker.publish(2)
    with broker.consumer():
        broker.connection.drain_events(timeout=5)
    assert broker.got == [1, 2]


def test_an_empty_queue_is_waited_for(broker: Broker) -> None:
    with broker.consumer():
        with pytest.raises(TimeoutError):
            broker.connection.drain_events(timeout=0.2)
        broker.publish(1)
        broker.connection.drain_events(timeout=5)
    assert broker.got == [1]


def test_a_connection_that_was_replaced_is_forgotten_by_the_event_loop(store_url: str) -> None:
    """A worker's consumer connects anew after each loss, for years."""
    hub = Hub()
    transports = []
    for _ in range(3):
        connection = BrokerConnection(store_url)
        connection.register_with_event_loop(hub)
        transports.append(weakref.ref(connection.transport))
        connection.release()
        del connection
    gc.collect()
    assert [transport() is None for transport in transports[:-1]] == [True, True]
    assert transports[-1]() is not None
    assert len(hub.on_tick) == 1
    hub.close()


def test_a_connection_that_cannot_be_registered_is_closed(broker: Broker) -> None:
    """A connection asks Redis as it is registered; Celery's consumer loses it then, and nobody else would close it."""
    hub, connection = Hub(), BrokerConnection(broker.connection.as_uri(include_password=True))
    connection.connect()
    clients = broker.redis.client_list()
    most = broker.redis.config_get("maxclients")["maxclients"]  # type: ignore[index]
    broker.redis.config_set("maxclients", len(clients))
    try:
        with pytest.raises(connection.connection_errors):
            connection.register_with_event_loop(hub)
    finally:
        broker.redis.config_set("maxclients", most)
    wait_until(lambda: len(broker.redis.client_list()) == len(clients) - 1, "Redis has seen it closed", 10)
    hub.close()
