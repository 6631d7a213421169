"""Prometheus' own checks of the files in ops/observability."""

from tests.prometheus import promtool


def test_prometheus_takes_its_configuration() -> None:
    assert "SUCCESS" in promtool("check", "config", "prometheus.yml")


def test_alerts_fire_where_they_have_to_and_nowhere_else() -> None:
    """The expectations are in rules_test.yml."""
    assert "SUCCESS" in promtool("test", "rules", "rules_test.yml")
