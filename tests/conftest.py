"""Fixtures of all rings, and the order they run in.

Redis is always real: the embedded Valkey, and the distribution's redis-server.
"""

import functools
import gc
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import httpx
import httpx2
import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from tests.stack import redis_server, valkey

# A shell that starts the tests in the background has them ignore Ctrl-C, and what they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Every client of httpx and openai's reads all certificates, for 70 ms: for all of them together once is enough.
for _transport in (httpx._transports.default, httpx2._transports.default):
    _transport.create_ssl_context = functools.cache(_transport.create_ssl_context)  # type: ignore[attr-defined]

# How long it takes to think of an input says something of the machine, and of what else it does.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("tests"), max_examples=25)  # `make check`
settings.load_profile("tests")

RINGS = ("contract", "acceptance", "chaos", "fuzz", "integration", "unit", "gpu", "soak")
REAL_ENGINE = tuple(
    f"tests/{path}"
    for path in (
        "contract/test_adapters", "contract/test_engine_contract", "contract/test_sglang", "contract/test_vllm",
        "contract/test_experts", "contract/test_stages",
        "contract/test_kv_event_wire", "contract/test_chat_template", "contract/test_experts",  # which import as much
        "acceptance/test_sglang", "acceptance/test_vllm",
    )
)  # fmt: skip
OTHER_ENGINES = ("mock", "trtllm")
# Files that take minutes, most of which they wait: whoever begins one last ends last.
LONG = tuple(f"tests/acceptance/test_{name}" for name in ("benchmarks", "planner", "upgrade", "fair_shares"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keeps garbage collection from the million objects that collecting makes, which all stay: here and later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test's folder is its marker. What takes long begins first, so that all processes end together."""
    for item in items:
        item.add_marker(ring(item))
        if loads_engine(item):
            item.add_marker("real_engine")
    items.sort(key=order)


def order(item: pytest.Item) -> tuple[bool, bool, int]:
    """Sorts real engines before long files, and both before the rest, ring by ring."""
    return not item.nodeid.startswith(REAL_ENGINE), not item.nodeid.startswith(LONG), RINGS.index(ring(item))


def loads_engine(item: pytest.Item) -> bool:
    """Whether it is of a real engine; a suite over every engine runs over others, too."""
    params = vars(item)["callspec"].params if "callspec" in vars(item) else {}
    return item.nodeid.startswith(REAL_ENGINE) and params.get("subject") not in OTHER_ENGINES


def ring(item: pytest.Item) -> str:
    return next(name for name in RINGS if name in item.path.parts)


class _Share(LoadFileScheduling):  # type: ignore[misc]
    """A file is one process's; and of real engines, which want memory, there is one at a time in each ring."""

    def _split_scope(self, nodeid: str) -> str:
        _, ring_name, *_ = nodeid.split("/")
        return f"real engines, {ring_name}" if nodeid.startswith(REAL_ENGINE) else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _Share:
    return _Share(config, log)


@pytest.fixture(scope="session")
def valkey_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with valkey(tmp_path_factory.mktemp("valkey")) as url:
        yield url


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test over both servers where it is about what one does: scripts, streams, publishing, Celery's stores."""
    if "store_url" in metafunc.fixturenames:
        servers = ["valkey", "redis"] if metafunc.definition.get_closest_marker("both_servers") else ["valkey"]
        metafunc.parametrize("store_url", servers, indirect=True, scope="session")


@pytest.fixture(scope="session")
def store_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of a kind that `pytest_generate_tests` names."""
    directory: Path = tmp_path_factory.mktemp("store")
    server = valkey if request.param == "valkey" else redis_server
    with server(directory) as url:
        yield url
