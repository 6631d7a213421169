"""The dashboard of requests: what clients get, how long it takes, and what it costs."""

from ops.observability.panels import OF_MODEL, Dashboard, Panel, Query, mean, or_zero, quantiles, rate, ratio, sum_by

_LEFT = 'outcome="cancelled"'

REQUESTS = Dashboard(
    "requests",
    "Xylem: requests",
    ("model",),
    (
        Panel(
            "Requests by outcome",
            "reqps",
            (Query(sum_by("model, outcome", rate("xylem_requests_total", OF_MODEL)), "{{model}} {{outcome}}"),),
            "Those of API replicas; lines of batches are on their own dashboard.",
        ),
        Panel(
            "In flight, and held for want of room",
            "short",
            (Query("sum (xylem_requests_in_flight)", "in flight"), Query("sum (xylem_requests_held)", "held")),
        ),
        Panel(
            "Errors instead of an answer",
            "reqps",
            (Query(or_zero(f"{sum_by('reason', rate('xylem_refusals_total'))} > 0"), "{{reason}}"),),
        ),
        Panel("Time to the first token", "s", quantiles("xylem_ttft_seconds", "model", OF_MODEL)),
        Panel("Time between tokens", "s", quantiles("xylem_itl_seconds", "model", OF_MODEL)),
        Panel("Whole request", "s", quantiles("xylem_request_seconds", "model", OF_MODEL)),
        Panel(
            "Queue time",
            "s",
            quantiles("xylem_stage_seconds", "model", OF_MODEL, 'stage="queue"'),
            "From the placement until its worker takes the request.",
        ),
        Panel(
            "Placement",
            "s",
            quantiles("xylem_stage_seconds", "model", OF_MODEL, 'stage="placement"'),
            "From the arrival on, with the wait for room.",
        ),
        Panel(
            "Stages, mean",
            "s",
            (Query(mean("xylem_stage_seconds", "model, stage", OF_MODEL), "{{model}} {{stage}}"),),
        ),
        Panel(
            "Tokens",
            "ops",
            tuple(
                Query(sum_by("model", rate(f"xylem_{which}_tokens_sum", OF_MODEL)), f"{{{{model}}}} {name}")
                for which, name in (("prompt", "prompt"), ("cached_prompt", "of these cached"), ("output", "output"))
            ),
        ),
        Panel("Prompt tokens of a request", "short", quantiles("xylem_prompt_tokens", "model", OF_MODEL)),
        Panel("Output tokens of a request", "short", quantiles("xylem_output_tokens", "model", OF_MODEL)),
        Panel(
            "Cost of a request, in worker-seconds",
            "s",
            quantiles("xylem_cost_worker_seconds", "model", OF_MODEL),
            "Of n requests on an engine, each costs an n-th of the time.",
        ),
        Panel(
            "Cost of 1,000 output tokens, in worker-seconds",
            "s",
            (
                Query(
                    ratio(
                        f"1000 * {sum_by('model', rate('xylem_cost_worker_seconds_sum', OF_MODEL))}",
                        sum_by("model", rate("xylem_output_tokens_sum", OF_MODEL)),
                    ),
                    "{{model}}",
                ),
            ),
        ),
        Panel(
            "Clients that left",
            "reqps",
            (Query(or_zero(sum_by("model", rate("xylem_requests_total", OF_MODEL, _LEFT))), "{{model}}"),),
        ),
    ),
)
