"""Grafana's files of the dashboards, in `grafana/dashboards/`: `python -m ops.observability.grafana` writes them."""

from pathlib import Path

from grafana_foundation_sdk.builders import common, dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import GraphGradientMode, LegendDisplayMode, LegendPlacement
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh

from ops.observability.dashboards import DASHBOARDS
from ops.observability.panels import Dashboard, Panel

FOLDER = Path(__file__).parent / "grafana" / "dashboards"
_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
# Where a variable finds its values.
_VALUES = {"pool": "label_values(xylem_workers, pool)", "model": "label_values(xylem_requests_total, model)"}


def written(board: Dashboard) -> str:
    """The dashboard as a file."""
    builder = (
        dashboard.Dashboard(board.title)
        .uid(f"xylem-{board.name}")
        .tags(["xylem"])
        .refresh("10s")
        .time("now-1h", "now")
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    for name in board.variables:
        builder.with_variable(
            dashboard.QueryVariable(name)
            .query(_VALUES[name])
            .datasource(_SOURCE)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .include_all(include_all=True)
            .all_value(".*")
            .multi(multi=True)
        )
    for panel in board.panels:
        builder.with_panel(_panel(panel))
    return f"{JSONEncoder(sort_keys=True, indent=2).encode(builder.build())}\n"


def _panel(panel: Panel) -> timeseries.Panel:
    builder = (
        timeseries.Panel()
        .title(panel.title)
        .description(panel.description)
        .datasource(_SOURCE)
        .unit(panel.unit)
        .min(0)
        .height(8)
        .span(8)
        .fill_opacity(10)
        .gradient_mode(GraphGradientMode.NONE)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(show_legend=True)
        )
    )
    for letter, query in zip("ABCDEFGH", panel.queries, strict=False):
        builder.with_target(prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(letter))
    return builder


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for board in DASHBOARDS:
        (FOLDER / f"{board.name}.json").write_text(written(board))


if __name__ == "__main__":
    main()
