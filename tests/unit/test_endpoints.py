"""The table of endpoints is whole: each row has a route, and what requests cost before they are admitted."""

from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from app.api.kserve.grpc_methods import METHODS
from app.api.main import create_app
from app.endpoint_registry import ENDPOINTS, VIDEOS
from app.endpoints import COSTS, ROWS
from app.settings import load_settings
from tests.stack import ROOT
from tests.worst_requests import worst

_READS = {"GET", "HEAD", "OPTIONS"}


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[APIRoute]:
    """The routes of an API."""
    pools = tmp_path / "pools.yaml"
    pools.write_text("pools: {decode-pool-a: {model: mock, engine: mock}}")
    monkeypatch.setenv("XYLEM_POOLS_FILE", str(pools))
    return [route for route in create_app(load_settings())._app.routes if isinstance(route, APIRoute)]


def test_each_row_has_a_route_a_shape_and_a_line_in_the_guide(served: list[APIRoute]) -> None:
    routes = {route.path: route for route in served if "POST" in route.methods}
    guide = "\n".join(page.read_text() for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "reference")
    for path in (path for row in ROWS for path in row.paths):
        assert 200 in routes[path].responses, path
        assert path in guide, path


def test_what_lines_of_batches_may_name_is_as_the_rows_say() -> None:
    assert list(ENDPOINTS) == [row.path for row in ROWS if row.is_batched]
    assert {endpoint.row for endpoint in (*ENDPOINTS.values(), VIDEOS)} == {row for row in ROWS if row.kind}


def test_each_endpoint_that_changes_something_says_what_it_may_cost(served: list[APIRoute]) -> None:
    """A new one fails here, until somebody has thought about who could hold what with it."""
    paths = {route.path for route in served if route.methods - _READS}
    assert paths | METHODS.keys() == COSTS.keys()


def test_what_no_limits_admit_reads_no_more_than_a_short_body() -> None:
    for path, cost in COSTS.items():
        assert cost.guard != "key" or not cost.takes_body, path
        assert cost.redis == cost.temporary == cost.threads == 0, path


def test_each_endpoint_has_requests_by_a_method_that_it_takes(served: list[APIRoute]) -> None:
    """The tests and `make bench NAME=overload` send each of these."""
    for row in COSTS:
        methods = {method for route in served if route.path == row for method in route.methods} or {"POST"}  # gRPC's
        requests = [*worst(row, 2**17)]
        assert requests, row
        assert {request.method for request in requests} <= methods, row
        assert all("{" not in request.path for request in requests), row
