"""Prompts that one worker computes and another one answers."""

from ops.observability.panels import (
    OF_MODEL,
    WORKER,
    Dashboard,
    mean,
    panel,
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
        panel(
            "Prompts by where they were computed",
            "ops",
            {"{{model}} {{where}}": sum_by("model, where", rate("xylem_prefills_total", OF_MODEL))},
            "refused: apart, and again where the answer was made.",
        ),
        panel(
            "Hop",
            "s",
            quantiles("xylem_stage_seconds", "model", OF_MODEL, 'stage="hop"'),
            "From the end of the prefill to the decode task.",
        ),
        panel(
            "Resume",
            "s",
            quantiles("xylem_stage_seconds", "model", OF_MODEL, 'stage="resume"'),
            "From there to its first token.",
        ),
        panel(
            "Transfer of KV",
            "s",
            quantiles("xylem_stage_seconds", "model", OF_MODEL, 'stage="transfer"'),
            "As the engine says; a part of resume.",
        ),
        panel("KV pulled", "Bps", {"{{model}}": sum_by("model", rate("xylem_pulled_bytes_total", OF_MODEL))}),
        panel("Prompt tokens whose KV was pulled", "ops", {WORKER: worker_rate("xylem_worker_pulled_tokens_total")}),
        panel(
            "KV blocks lent", "short", {WORKER: per_worker("xylem_worker_lent_blocks")}, "Kept for engines that decode."
        ),
        panel(
            "Prefill and decode, mean",
            "s",
            {"{{model}} {{stage}}": mean("xylem_stage_seconds", "model, stage", OF_MODEL, 'stage=~"prefill|decode"')},
        ),
    ),
)
