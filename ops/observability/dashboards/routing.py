"""The dashboard of routing: where requests are placed, and what caches have of them."""

from ops.observability.panels import (
    OF_MODEL,
    OF_POOL,
    WORKER,
    Dashboard,
    by_pool,
    or_zero,
    panel,
    per_worker,
    quantiles,
    rate,
    ratio,
    selected,
    sum_by,
    worker_rate,
)

_MATCHED, _MISSED = (rate(f"xylem_routing_blocks_{which}_total", OF_POOL) for which in ("matched", "missed"))
_AUDITED, _AUDITS_WRONG, _AUDIT_ERROR = (
    rate(f"xylem_routing_{which}_total", OF_POOL) for which in ("audited", "audits_wrong", "audit_error_tokens")
)

ROUTING = Dashboard(
    "routing",
    "Xylem: routing and cache",
    ("pool", "model"),
    (
        panel(
            "Prompt tokens from a cache",
            "percentunit",
            {
                "{{model}}": ratio(
                    sum_by("model", rate("xylem_cached_prompt_tokens_sum", OF_MODEL)),
                    sum_by("model", rate("xylem_prompt_tokens_sum", OF_MODEL)),
                )
            },
            "As the engines say, of all prompt tokens.",
        ),
        panel(
            "Hit rate of a request",
            "percentunit",
            quantiles("xylem_kv_hit_rate", "model", OF_MODEL, of=(0.25, 0.5, 0.75)),
        ),
        panel("Cached tokens of a request", "short", quantiles("xylem_cached_prompt_tokens", "model", OF_MODEL)),
        panel(
            "Blocks that the chosen cache had",
            "percentunit",
            {"{{pool}}": ratio(by_pool(_MATCHED), f"{by_pool(_MATCHED)} + {by_pool(_MISSED)}")},
            "As routing expected when it placed the requests. Far above what the engines say: the index is wrong.",
        ),
        panel(
            "Answers whose cached tokens were not as expected",
            "percentunit",
            {"{{pool}}": ratio(by_pool(_AUDITS_WRONG), by_pool(_AUDITED))},
            "Of all whose engine told. An idle engine has none; a busy one has changed its cache meanwhile.",
        ),
        panel(
            "Prompt tokens wrongly expected to be cached, or not, of an answer",
            "short",
            {"{{pool}}": ratio(by_pool(_AUDIT_ERROR), by_pool(_AUDITED))},
        ),
        panel(
            "Blocks from tiers",
            "ops",
            {"{{pool}} {{tier}}": sum_by("pool, tier", rate("xylem_routing_blocks_tiered_total", OF_POOL))},
        ),
        panel(
            "Speed of tiers",
            "Bps",
            {
                f"{WORKER} host memory": per_worker("xylem_worker_host_bytes_per_s"),
                f"{WORKER} store": per_worker("xylem_worker_store_bytes_per_s"),
            },
        ),
        panel("Decision about a request", "s", quantiles("xylem_routing_decision_seconds", "pool", OF_POOL)),
        panel("Reading fleet and index", "s", quantiles("xylem_routing_read_seconds", "instance", of=(0.5, 0.99))),
        panel(
            "Imbalance",
            "short",
            {"{{pool}}": f"max by (pool) ({selected('xylem_routing_imbalance', OF_POOL)})"},
            "Requests of the fullest place, divided by the mean of all places.",
        ),
        panel(
            "Drafted tokens that were accepted",
            "percentunit",
            {
                "{{pool}}": or_zero(
                    ratio(
                        by_pool(worker_rate("xylem_worker_accepted_tokens_1_total")),
                        by_pool(worker_rate("xylem_worker_drafts_total")),
                    )
                )
            },
            "The first token of each draft, of engines that speculate.",
        ),
        panel("LoRA adapters", "short", {WORKER: per_worker("xylem_worker_adapters")}),
    ),
)
