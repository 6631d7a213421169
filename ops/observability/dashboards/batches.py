"""The dashboard of batches: how far they are. Their lines are no requests of API replicas."""

from ops.observability.panels import Dashboard, or_zero, panel, rate, ratio

_LINES = "max by (outcome) (rate(xylem_batch_lines_total[$__rate_interval]))"

BATCHES = Dashboard(
    "batches",
    "Xylem: batches",
    (),
    (
        panel("Lines by outcome", "ops", {"{{outcome}}": _LINES}),
        panel("Tokens", "ops", {"{{kind}}": f"max by (kind) ({rate('xylem_batch_tokens_total')})"}),
        panel("Batches by status", "short", {"{{status}}": "max by (status) (xylem_batches)"}),
        panel("Lines without a result", "short", {"lines": "max (xylem_batch_backlog_lines)"}),
        panel(
            "Time to the end, at this speed",
            "s",
            {"all batches": or_zero(ratio("max (xylem_batch_backlog_lines)", f"sum ({_LINES})"))},
        ),
        panel("Age of the oldest batch", "s", {"age": "max (xylem_batch_oldest_seconds)"}),
        panel(
            "Seats of aside requests",
            "percentunit",
            {"share": "max (xylem_batch_capacity_share)"},
            "Of batches and of the service tier `flex`, as a share of all engines' seats.",
        ),
    ),
)
