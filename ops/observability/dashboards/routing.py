"""The dashboard of routing: where requests are placed, and what caches have of them."""

from ops.observability.panels import (
    OF_MODEL,
    OF_POOL,
    WORKER,
    Dashboard,
    Panel,
    Query,
    by_pool,
    or_zero,
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
        Panel(
            "Prompt tokens from a cache",
            "percentunit",
            (
                Query(
                    ratio(
                        sum_by("model", rate("xylem_cached_prompt_tokens_sum", OF_MODEL)),
                        sum_by("model", rate("xylem_prompt_tokens_sum", OF_MODEL)),
                    ),
                    "{{model}}",
                ),
            ),
            "As the engines say, of all prompt tokens.",
        ),
        Panel(
            "Hit rate of a request",
            "percentunit",
            quantiles("xylem_kv_hit_rate", "model", OF_MODEL, of=(0.25, 0.5, 0.75)),
        ),
        Panel("Cached tokens of a request", "short", quantiles("xylem_cached_prompt_tokens", "model", OF_MODEL)),
        Panel(
            "Blocks that the chosen cache had",
            "percentunit",
            (
                Query(
                    ratio(by_pool(_MATCHED), f"{by_pool(_MATCHED)} + {by_pool(_MISSED)}"),
                    "{{pool}}",
                ),
            ),
            "As routing expected when it placed the requests. Far above what the engines say: the index is wrong.",
        ),
        Panel(
            "Answers whose cached tokens were not as expected",
            "percentunit",
            (Query(ratio(by_pool(_AUDITS_WRONG), by_pool(_AUDITED)), "{{pool}}"),),
            "Of all whose engine told. An idle engine has none; a busy one has changed its cache meanwhile.",
        ),
        Panel(
            "Prompt tokens wrongly expected to be cached, or not, of an answer",
            "short",
            (Query(ratio(by_pool(_AUDIT_ERROR), by_pool(_AUDITED)), "{{pool}}"),),
        ),
        Panel(
            "Blocks from tiers",
            "ops",
            (Query(sum_by("pool, tier", rate("xylem_routing_blocks_tiered_total", OF_POOL)), "{{pool}} {{tier}}"),),
        ),
        Panel(
            "Speed of tiers",
            "Bps",
            (
                Query(per_worker("xylem_worker_host_bytes_per_s"), f"{WORKER} host memory"),
                Query(per_worker("xylem_worker_store_bytes_per_s"), f"{WORKER} store"),
            ),
        ),
        Panel("Decision about a request", "s", quantiles("xylem_routing_decision_seconds", "pool", OF_POOL)),
        Panel("Reading fleet and index", "s", quantiles("xylem_routing_read_seconds", "instance", of=(0.5, 0.99))),
        Panel(
            "Imbalance",
            "short",
            (Query(f"max by (pool) ({selected('xylem_routing_imbalance', OF_POOL)})", "{{pool}}"),),
            "Requests of the fullest place, divided by the mean of all places.",
        ),
        Panel(
            "Drafted tokens that were accepted",
            "percentunit",
            (
                Query(
                    or_zero(
                        ratio(
                            by_pool(worker_rate("xylem_worker_accepted_tokens_1_total")),
                            by_pool(worker_rate("xylem_worker_drafts_total")),
                        )
                    ),
                    "{{pool}}",
                ),
            ),
            "The first token of each draft, of engines that speculate.",
        ),
        Panel("LoRA adapters", "short", (Query(per_worker("xylem_worker_adapters"), WORKER),)),
    ),
)
