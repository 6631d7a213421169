"""Imports of a process: the API loads no engine, and the package itself loads nothing at all."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "vllm", "transformers", "nixl", "sglang", "tensorrt_llm", "numpy", "pandas", "av", "grpc")


def loaded(statement: str) -> set[str]:
    """The modules that a fresh interpreter has after the statement and had not before."""
    code = f"import sys; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(result.stdout.split())


@pytest.fixture(scope="module")
def api() -> set[str]:
    return loaded("import app.api.main")


def test_importing_the_package_loads_nothing() -> None:
    """`celery -A app` falls through to app/celery.py, and `import app` stays free."""
    assert loaded("import app") == {"app"}


def test_the_api_loads_no_heavy_library(api: set[str]) -> None:
    """The API must start fast and run where no torch is installed."""
    assert not api & set(HEAVY)


def test_the_api_loads_no_engine_and_no_worker(api: set[str]) -> None:
    """Engines live in workers only."""
    assert not [m for m in api if m.startswith(("app.engines", "workers"))]


def test_the_api_loads_no_celery(api: set[str]) -> None:
    """The API writes Celery's messages itself; the library would cost memory and time at start."""
    assert not [m for m in api if m.split(".")[0] in ("celery", "kombu", "billiard", "amqp")]


def test_what_nobody_exports_to_is_not_loaded() -> None:
    """Tracing is off without an endpoint, and OpenTelemetry costs nothing; only redis-py looks for it."""
    modules = loaded("from app.tracing.tracer import tracer_of_environment as t; assert t() is None")
    assert not [m for m in modules if m.startswith(("opentelemetry", "app.tracing.otel"))]


def test_the_engines_package_loads_no_engine() -> None:
    """An engine is imported when a pool names it."""
    modules = loaded("import app.engines")
    assert not modules & {*HEAVY, "app.engines.vllm", "app.engines.mock.engine"}
