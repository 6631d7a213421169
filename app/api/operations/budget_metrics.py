"""Metrics of budgets: of the whole deployment, the same at each API replica."""

from collections.abc import Iterable

import msgspec
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from app.telemetry import logger
from app.tenants.budget_notices import decode_uses

log = logger(__name__)


def budget_metrics(raw: bytes) -> Iterable[Metric]:
    """`raw`: as one replica has written them."""
    family = GaugeMetricFamily(
        "xylem_budget_used_ratio",
        "Used part of a budget in its day, week or month, of a tenant or, with `key`, of a key: the hundred most used.",
        labels=["tenant", "key"],
    )
    try:
        for use in decode_uses(raw):
            family.add_metric([use.tenant, use.key], use.share)
    except msgspec.DecodeError as exc:
        log.warning("budgets_not_understood", error=str(exc))
    yield family
