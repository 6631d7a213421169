"""A worker is back within a second of Redis, whatever Celery's own pauses are."""

from typing import Any

import pytest
from kombu.exceptions import OperationalError

from app.celery import app


class Enough(Exception):
    """Of tries."""


def test_pauses_between_tries_to_reach_the_broker_stay_under_a_second() -> None:
    pauses: list[float] = []

    def errback(_exc: Exception, pause: float) -> None:
        pauses.append(pause)
        if len(pauses) == 7:
            raise Enough

    with app.connection_for_read("redis://127.0.0.1:1") as connection, pytest.raises(Enough):
        connection.ensure_connection(errback, None, callback=lambda: None)
    assert pauses[0] <= 0.1
    assert max(pauses) == 1.0


def test_so_are_those_of_connections_that_nothing_makes_sure_of() -> None:
    """As when a channel is opened after the connection was lost again."""
    pauses: list[float] = []

    def errback(_exc: Exception, pause: float) -> None:
        pauses.append(pause)
        if len(pauses) == 3:
            raise Enough

    with app.connection_for_read("redis://127.0.0.1:1") as connection:
        connection.transport_options["errback"] = errback
        with pytest.raises(Enough):
            _ = connection.default_channel
    assert max(pauses) <= 1.0


def test_what_celery_asks_of_a_connection_is_passed_on() -> None:
    seen: list[Any] = []

    def errback(exc: Exception, pause: float) -> None:
        seen.append((type(exc).__name__, pause))

    with app.connection_for_read("redis://127.0.0.1:1") as connection, pytest.raises(OperationalError):
        connection.ensure_connection(errback, 1, interval_start=0.01)
    assert [pause for _, pause in seen] == [0.01]
