"""The dashboard of requests: what clients get, how long it takes, and what it costs."""

from ops.observability.panels import OF_MODEL, Dashboard, mean, or_zero, panel, quantiles, rate, ratio, sum_by

_LEFT = 'outcome="cancelled"'

REQUESTS = Dashboard(
    "requests",
    "Xylem: requests",
    ("model",),
    (
        panel(
            "Requests by outcome",
            "reqps",
            {"{{model}} {{outcome}}": sum_by("model, outcome", rate("xylem_requests_total", OF_MODEL))},
            "Those of API replicas; lines of batches are on their own dashboard.",
        ),
        panel(
            "In flight, and held for want of room",
            "short",
            {"in flight": "sum (xylem_requests_in_flight)", "held": "sum (xylem_requests_held)"},
        ),
        panel(
            "Errors instead of an answer",
            "reqps",
            {"{{reason}}": or_zero(f"{sum_by('reason', rate('xylem_refusals_total'))} > 0")},
        ),
        panel("Time to the first token", "s", quantiles("xylem_ttft_seconds", "model", OF_MODEL)),
        panel("Time between tokens", "s", quantiles("xylem_itl_seconds", "model", OF_MODEL)),
        panel("Whole request", "s", quantiles("xylem_request_seconds", "model", OF_MODEL)),
        panel(
            "Queue time",
            "s",
            quantiles("xylem_stage_seconds", "model", OF_MODEL, 'stage="queue"'),
            "From the placement until its worker takes the request.",
        ),
        panel(
            "Placement",
            "s",
            quantiles("xylem_stage_seconds", "model", OF_MODEL, 'stage="placement"'),
            "From the arrival on, with the wait for room.",
        ),
        panel("Stages, mean", "s", {"{{model}} {{stage}}": mean("xylem_stage_seconds", "model, stage", OF_MODEL)}),
        panel(
            "Tokens",
            "ops",
            {
                f"{{{{model}}}} {name}": sum_by("model", rate(f"xylem_{which}_tokens_sum", OF_MODEL))
                for which, name in (("prompt", "prompt"), ("cached_prompt", "of these cached"), ("output", "output"))
            },
        ),
        panel("Prompt tokens of a request", "short", quantiles("xylem_prompt_tokens", "model", OF_MODEL)),
        panel("Output tokens of a request", "short", quantiles("xylem_output_tokens", "model", OF_MODEL)),
        panel(
            "Cost of a request, in worker-seconds",
            "s",
            quantiles("xylem_cost_worker_seconds", "model", OF_MODEL),
            "Of n requests on an engine, each costs an n-th of the time.",
        ),
        panel(
            "Cost of 1,000 output tokens, in worker-seconds",
            "s",
            {
                "{{model}}": ratio(
                    f"1000 * {sum_by('model', rate('xylem_cost_worker_seconds_sum', OF_MODEL))}",
                    sum_by("model", rate("xylem_output_tokens_sum", OF_MODEL)),
                )
            },
        ),
        panel(
            "Clients that left",
            "reqps",
            {"{{model}}": or_zero(sum_by("model", rate("xylem_requests_total", OF_MODEL, _LEFT)))},
        ),
    ),
)
