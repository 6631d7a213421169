"""kombu's channel to Redis, except that it takes all messages for which there is room at once, and leaves no bindings.

kombu makes a round trip for each message: a quarter of what a short request costs its worker.
"""

from collections.abc import Callable
from queue import Empty
from time import monotonic
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from kombu import Connection
from kombu.transport import redis
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads

from app.telemetry import logger

log = logger(__name__)

_MOST = 64


def _one() -> int:
    return 1


class AtOnce:
    """A mixin for a channel of kombu's, which calls these two methods."""

    room: ClassVar[Callable[[], int]] = staticmethod(_one)  # how many messages the process may take now

    def _brpop_start(self: Any, timeout: float | None = None) -> None:
        queues = self._queue_cycle.consume(len(self.active_queues))
        if not queues:
            return
        prefix, connection = self.global_keyprefix, self.client.connection
        keys = [f"{prefix}{self._q_for_pri(queue, step)}" for step in self.priority_steps for queue in queues]
        self._in_poll, self._brpop_sent_at = connection, monotonic()
        wait_s, count = timeout or self.brpop_timeout or 0, max(1, min(_MOST, self.room()))
        connection.send_command("BLMPOP", wait_s, len(keys), *keys, "RIGHT", "COUNT", count)

    def _brpop_read(self: Any, **options: Any) -> bool:
        """Raises: Empty; the first error of a connection, when all messages were delivered."""
        try:
            try:
                reply = self.client.parse_response(self.client.connection, "BLMPOP", **options)
            except self.connection_errors:
                self.client.connection.disconnect()  # so that the next turn reconnects
                raise
            if not reply:
                raise Empty
            key, messages = reply
            queue = bytes_to_str(key).removeprefix(self.global_keyprefix).rsplit(self.sep, 1)[0]
            self._queue_cycle.rotate(queue)
            first_error: Exception | None = None
            for message in messages:
                try:
                    payload = _payload(self, message)
                except Exception as exc:  # noqa: BLE001 (of any kind: it would end the process, and the next one)
                    log.error("message_not_understood", queue=queue, error=type(exc).__name__, size=len(message))
                    continue
                try:
                    self.connection._deliver(payload, queue)  # noqa: SLF001 (kombu's own way)
                except self.connection_errors as exc:  # raised below: the others are in no queue any more
                    first_error = first_error or exc
                except Exception as exc:  # Celery would end the process, and the next one that gets it
                    log.error("message_not_taken", queue=queue, exc_info=exc)
            if first_error is not None:
                raise first_error
            return True
        finally:
            self._in_poll = None
            self._flush_brpop_reauth()


def _payload(channel: Any, raw: bytes) -> Any:
    """A message as kombu takes it apart. Raises: any error, for another value: Redis may have anything."""
    payload = loads(bytes_to_str(raw))
    properties = payload["properties"]
    channel.decode_body(payload.get("body"), properties.get("body_encoding"))
    properties["delivery_tag"], properties["delivery_info"]["routing_key"]
    return payload


class Unbound:
    """A mixin for a channel of kombu's that records no bindings of a fanout.

    kombu notes who listens to a fanout, and forgets only those that end in good order. Nobody reads these notes: what
    is sent to a fanout goes to all that have subscribed.
    """

    def _queue_bind(self: Any, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        if self.typeof(exchange).type != "fanout":
            super()._queue_bind(exchange, routing_key, pattern, queue)  # type: ignore[misc]
            return
        self._fanout_queues[queue] = exchange, routing_key.replace("#", "*")
        with self.conn_or_acquire() as client:  # what kombu itself, or an older version, has left
            client.delete(self.keyprefix_queue % exchange, self.keyprefix_binding_permanent % exchange)

    def _refresh_bindings(self: Any, queues: list[str]) -> None:
        """Writes them once more, of queues that would expire."""
        super()._refresh_bindings([queue for queue in queues if queue not in self._fanout_queues])  # type: ignore[misc]


class RegisteredOnce:
    """A mixin for a transport of kombu's, which otherwise leaves its callbacks, and so itself, at the event loop."""

    _before: ClassVar[WeakKeyDictionary[Any, set[Callable[[], None]]]] = WeakKeyDictionary()  # by loop

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Registers a connection in place of the one before it: the consumer has only one.

        It asks Redis. If that fails, the connection is closed: Celery's consumer has not noted it yet, and forgets it.
        """
        loop.on_tick -= self._before.get(loop, set())
        others = set(loop.on_tick)
        try:
            super().register_with_event_loop(connection, loop)  # type: ignore[misc]  # of the transport's class
        except Exception:
            self.close_connection(connection)  # type: ignore[attr-defined]
            raise
        self._before[loop] = loop.on_tick - others


class _Channel(AtOnce, Unbound, redis.Channel):  # type: ignore[misc]  # kombu has no types
    pass


class _Transport(RegisteredOnce, redis.Transport):  # type: ignore[misc]
    Channel = _Channel


class _SentinelChannel(AtOnce, Unbound, redis.SentinelChannel):  # type: ignore[misc]
    pass


class _SentinelTransport(RegisteredOnce, redis.SentinelTransport):  # type: ignore[misc]
    Channel = _SentinelChannel


_OURS = {redis.Transport: _Transport, redis.SentinelTransport: _SentinelTransport}


class BrokerConnection(Connection):  # type: ignore[misc]
    def get_transport_cls(self) -> Any:
        transport_class = super().get_transport_cls()
        return _OURS.get(transport_class, transport_class)
