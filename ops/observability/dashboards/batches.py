"""The dashboard of batches: how far they are. Their lines are no requests of API replicas."""

from ops.observability.panels import Dashboard, Panel, Query, or_zero, rate, ratio

_LINES = "max by (outcome) (rate(xylem_batch_lines_total[$__rate_interval]))"

BATCHES = Dashboard(
    "batches",
    "Xylem: batches",
    (),
    (
        Panel("Lines by outcome", "ops", (Query(_LINES, "{{outcome}}"),)),
        Panel("Tokens", "ops", (Query(f"max by (kind) ({rate('xylem_batch_tokens_total')})", "{{kind}}"),)),
        Panel("Batches by status", "short", (Query("max by (status) (xylem_batches)", "{{status}}"),)),
        Panel("Lines without a result", "short", (Query("max (xylem_batch_backlog_lines)", "lines"),)),
        Panel(
            "Time to the end, at this speed",
            "s",
            (
                Query(
                    or_zero(ratio("max (xylem_batch_backlog_lines)", f"sum ({_LINES})")),
                    "all batches",
                ),
            ),
        ),
        Panel("Age of the oldest batch", "s", (Query("max (xylem_batch_oldest_seconds)", "age"),)),
        Panel(
            "Seats of aside requests",
            "percentunit",
            (Query("max (xylem_batch_capacity_share)", "share"),),
            "Of batches and of the service tier `flex`, as a share of all engines' seats.",
        ),
    ),
)
