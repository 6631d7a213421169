"""Grafana's dashboards and Prometheus' alerts: their files are as generated, and ask for what there is."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from ops.docs.reference import declared_metrics
from ops.observability.dashboards import DASHBOARDS
from ops.observability.empty import everything, filled_in
from ops.observability.grafana import FOLDER, written
from ops.observability.panels import Dashboard
from tests.stack import ROOT

RULES = Path("ops/observability/prometheus/rules.yml")
OF_ALL = {"job", "instance"}  # labels that Prometheus adds
# Of prometheus_client, and of Prometheus itself.
OF_OTHERS = dict.fromkeys(("up", "process_cpu_seconds_total", "process_resident_memory_bytes"), OF_ALL)
PARTS = {"histogram": {"_bucket": {"le"}, "_sum": set(), "_count": set()}}


def known() -> dict[str, set[str]]:
    """The labels of each series that Xylem's processes have, by its name."""
    metric_labels = {name: set(labels) for name, labels in OF_OTHERS.items()}
    for metric in declared_metrics():
        for end, more in PARTS.get(metric.kind, {"": set[str]()}).items():
            metric_labels[metric.name + end] = OF_ALL | {*metric.labels} | more
    return metric_labels


KNOWN = known()


def asked(expr: str) -> list[tuple[str, set[str]]]:
    """The name of each series that an expression asks for, and the labels that it uses of it."""
    return list(_asked(promql_parser.parse(expr), set()))


def _asked(node: Any, labels: set[str]) -> Iterator[tuple[str, set[str]]]:
    if isinstance(node, promql_parser.VectorSelector):
        yield node.name, labels | {matcher.name for matcher in node.matchers.matchers}
    if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
        labels = set(node.modifier.labels)
    for part in ("lhs", "rhs", "expr", "vector_selector"):
        if (below := getattr(node, part, None)) is not None:
            yield from _asked(below, labels)
    for below in getattr(node, "args", ()):
        yield from _asked(below, labels)


def unknown(expr: str) -> list[str]:
    """Metrics and labels that the query asks for, and nobody has."""
    selectors = asked(expr)
    assert selectors
    return [
        f"{name}{labels - KNOWN.get(name, set())}"
        for name, labels in selectors
        if labels - KNOWN.get(name, set()) or name not in KNOWN
    ]


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: board.name)
def test_a_dashboards_file_is_what_is_generated(board: Dashboard) -> None:
    """`python -m ops.observability.grafana` writes it."""
    assert (FOLDER / f"{board.name}.json").read_text() == written(board)


def test_there_is_a_file_of_each_dashboard_and_no_other() -> None:
    assert {path.stem for path in FOLDER.glob("*")} == {board.name for board in DASHBOARDS}


def test_every_query_of_a_panel_asks_for_metrics_and_labels_that_there_are() -> None:
    mistakes = {panel.name: unknown(filled_in(panel.query.expr, "1m")) for panel in everything()}
    assert len(mistakes) > 60
    assert {name: what for name, what in mistakes.items() if what} == {}


def test_a_panel_whose_metric_is_gone_would_be_found() -> None:
    assert unknown('sum by (pool) (rate(xylem_gone_total{pool="a"}[1m])) / max (xylem_workers)') == [
        "xylem_gone_total{'pool'}"
    ]
    assert unknown("max by (model) (xylem_workers)") == ["xylem_workers{'model'}"]


def test_a_query_that_a_chosen_pool_or_model_does_not_change_has_no_such_label() -> None:
    """The choice at the top of the dashboard would otherwise apply to some panels only."""
    for panel in everything():
        for variable in panel.dashboard.variables:
            could = any(variable in KNOWN[name] for name, _ in asked(filled_in(panel.query.expr, "1m")))
            assert could == (f"${variable}" in panel.query.expr), panel.name


def test_what_the_compose_file_mounts_is_there() -> None:
    services = yaml.safe_load(Path("ops/observability/compose.yaml").read_text())["services"]
    mounts = [mount.split(":")[0] for service in services.values() for mount in service["volumes"]]
    paths = [Path("ops/observability", mount) for mount in mounts if mount.startswith(".")]
    assert len(paths) == 3
    assert all(any(path.rglob("*.*")) for path in paths)


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_an_alert_asks_for_what_there_is_and_is_explained_and_tested(alert: dict[str, Any]) -> None:
    assert unknown(alert["expr"]) == []
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    sections = re.split(r"^#+ ", (ROOT / page).read_text(), flags=re.MULTILINE)
    (section,) = (text for text in sections if text.partition("\n")[0].lower() == anchor)
    assert section.startswith(alert["alert"])
    assert alert["annotations"]["description"] in re.sub(r"\[(.*?)\]\(.*?\)", r"\1", section)
    assert f"alertname: {alert['alert']}\n        exp_alerts:" in RULES.with_name("rules_test.yml").read_text()


def test_the_outcomes_and_reasons_that_alerts_name_are_errors_that_there_are() -> None:
    from app.errors import OUTCOMES

    patterns = re.findall(r'(?:outcome|reason)=~?"([a-z_|]+)"', RULES.read_text())
    assert len(patterns) >= 3
    assert {one for names in patterns for one in names.split("|")} <= OUTCOMES
