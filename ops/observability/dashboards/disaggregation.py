"""Prompts that one worker computes and another one answers."""

from ops.observability.panels import (
    OF_MODEL,
    WORKER,
    Dashboard,
    Panel,
    Query,
    mean,
    per_worker,
    quantiles,
    rate,
    sum_by,
    worker_rate,
)

DISAGGREGATION = Dashboard(
    "disaggregation",
    "Xylem: prefill and decode apart",
    ("pool", "model"),
    (
        Panel(
            "Prompts by where they were computed",
            "ops",
            (Query(sum_by("model, where", rate("xylem_prefills_total", OF_MODEL)), "{{model}} {{where}}"),),
            "refused: apart, and again where the answer was made.",
        ),
        Panel(
            "Hop",
            "s",
            quantiles("xylem_stage_seconds", "model", OF_MODEL, 'stage="hop"'),
            "From the end of the prefill to the decode task.",
        ),
        Panel(
            "Resume",
            "s",
            quantiles("xylem_stage_seconds", "model", OF_MODEL, 'stage="resume"'),
            "From there to its first token.",
        ),
        Panel(
            "Transfer of KV",
            "s",
            quantiles("xylem_stage_seconds", "model", OF_MODEL, 'stage="transfer"'),
            "As the engine says; a part of resume.",
        ),
        Panel("KV pulled", "Bps", (Query(sum_by("model", rate("xylem_pulled_bytes_total", OF_MODEL)), "{{model}}"),)),
        Panel(
            "Prompt tokens whose KV was pulled",
            "ops",
            (Query(worker_rate("xylem_worker_pulled_tokens_total"), WORKER),),
        ),
        Panel(
            "KV blocks lent",
            "short",
            (Query(per_worker("xylem_worker_lent_blocks"), WORKER),),
            "Kept for engines that decode.",
        ),
        Panel(
            "Prefill and decode, mean",
            "s",
            (
                Query(
                    mean("xylem_stage_seconds", "model, stage", OF_MODEL, 'stage=~"prefill|decode"'),
                    "{{model}} {{stage}}",
                ),
            ),
        ),
    ),
)
