"""A worker is back within a second of Redis, whatever Celery's own pauses are."""

from collections.abc import Callable

import pytest
from kombu import Connection
from kombu.exceptions import OperationalError

from app.celery import app


class Enough(Exception):
    """An end of the test after enough tries."""


def ensured(connection: Connection, errback: Callable[[Exception, float], None]) -> None:
    """Asks for a connection as Celery's consumer does."""
    connection.ensure_connection(errback, None, callback=lambda: None)


def opened(connection: Connection, errback: Callable[[Exception, float], None]) -> None:
    """Opens a channel, as happens after the connection was lost again."""
    connection.transport_options["errback"] = errback
    _ = connection.default_channel


@pytest.mark.parametrize("connect", [ensured, opened])
def test_pauses_between_tries_to_reach_the_broker_grow_to_a_second_and_no_further(
    monkeypatch: pytest.MonkeyPatch, connect: Callable[..., None]
) -> None:
    monkeypatch.setattr("kombu.utils.functional.sleep", lambda _: None)
    pauses: list[float] = []

    def errback(_exc: Exception, pause: float) -> None:
        pauses.append(pause)
        if len(pauses) == 8:
            raise Enough

    with app.connection_for_read("redis://127.0.0.1:1") as connection, pytest.raises(Enough):
        connect(connection, errback)
    assert pauses == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.9, 1.0, 1.0, 1.0])


def test_other_pauses_that_celery_asks_for_are_kept() -> None:
    pauses: list[float] = []
    with app.connection_for_read("redis://127.0.0.1:1") as connection, pytest.raises(OperationalError):
        connection.ensure_connection(lambda _exc, pause: pauses.append(pause), 1, interval_start=0.01)
    assert pauses == [0.01]
