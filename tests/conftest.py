"""Fixtures of all rings. Redis is always real: the embedded Valkey, and the distribution's redis-server."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.stack import redis_server, valkey

# A shell that starts the tests in the background has them ignore Ctrl-C, and what they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long it takes to think of an input says something of the machine, and of what else it does.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

RINGS = ("unit", "contract", "integration", "acceptance", "chaos", "fuzz", "gpu")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test's folder is its marker."""
    for item in items:
        for ring in RINGS:
            if ring in item.path.parts:
                item.add_marker(ring)


@pytest.fixture(scope="session")
def valkey_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with valkey(tmp_path_factory.mktemp("valkey")) as url:
        yield url


@pytest.fixture(scope="session", params=["valkey", "redis"])
def store_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Each test that asks for it runs over both."""
    directory: Path = tmp_path_factory.mktemp("store")
    server = valkey if request.param == "valkey" else redis_server
    with server(directory) as url:
        yield url
