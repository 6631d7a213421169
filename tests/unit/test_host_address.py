"""The address by which others reach this host."""

import socket

import pytest

from app.addresses.host_address import address_towards


@pytest.mark.parametrize("url", ["redis://127.0.0.1:6379/0", "rediss://user:pass@localhost", "unix:///run/redis.sock"])
def test_towards_a_redis_on_this_host_it_is_loopback(url: str) -> None:
    assert address_towards(url) in ("127.0.0.1", "::1")


def test_towards_another_host_it_is_one_that_this_host_can_listen_at() -> None:
    """192.0.2.1 is an address that nobody has."""
    with socket.socket() as s:
        s.bind((address_towards("redis://192.0.2.1:6379"), 0))


def test_a_name_that_is_unknown_is_no_trouble_here() -> None:
    """The worker's own connection to Redis says what is wrong."""
    assert address_towards("redis://no-such-host.invalid:6379") == "127.0.0.1"
