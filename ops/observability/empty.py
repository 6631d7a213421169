"""Lists the queries of the dashboards that show nothing: `python -m ops.observability.empty http://127.0.0.1:9090`.

Prints a table of them, and one line of JSON. On a fleet that does all that there are panels for, there should be none.
"""

import json
import math
import re
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx

from ops.observability.dashboards import DASHBOARDS
from ops.observability.panels import ZERO, Dashboard, Panel, Query

_LABEL = re.compile(r"{{(\w+)}}")


class Shown(NamedTuple):
    dashboard: Dashboard
    panel: Panel
    query: Query

    @property
    def name(self) -> str:
        return f"{self.dashboard.name}: {self.panel.title}: {self.query.legend}"


def everything() -> Iterator[Shown]:
    for board in DASHBOARDS:
        for panel in board.panels:
            for query in panel.queries:
                yield Shown(board, panel, query)


def filled_in(expr: str, window: str) -> str:
    """The query as Grafana sends it when nothing was chosen. `window`: of rates, such as 1m."""
    return expr.replace("$__rate_interval", window).replace("$pool", ".*").replace("$model", ".*")


def empty(prometheus: httpx.Client, window: str = "1m") -> list[str]:
    """The names of queries without a number, or without a label that their legend names."""
    return [one.name for one in everything() if not shows(prometheus, one.query, window)]


def shows(prometheus: httpx.Client, query: Query, window: str) -> bool:
    answer = prometheus.get("/api/v1/query", params={"query": filled_in(query.expr, window)}).raise_for_status().json()
    series: list[dict[str, Any]] = answer["data"]["result"]
    numbers = [one for one in series if not math.isnan(float(one["value"][1]))]
    labels = [] if query.expr.endswith(ZERO) else _LABEL.findall(query.legend)
    return bool(numbers) and all(one["metric"].get(label) for one in numbers for label in labels)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("python -m ops.observability.empty http://127.0.0.1:9090")
    with httpx.Client(base_url=sys.argv[1], timeout=30) as prometheus:
        try:
            empty_queries = empty(prometheus)
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            sys.exit(f"Prometheus at {sys.argv[1]}: {exc}")
    for name in empty_queries:
        print(name)
    print(json.dumps({"panels_empty": len(empty_queries), "queries": len(list(everything()))}))


if __name__ == "__main__":
    main()
