"""Workers, and the processes in front of them."""

from ops.observability.panels import (
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

FLEET = Dashboard(
    "fleet",
    "Xylem: fleet",
    ("pool",),
    (
        panel(
            "Workers by state",
            "short",
            {"{{pool}} {{state}}": f"max by (pool, state) ({selected('xylem_workers', OF_POOL)})"},
        ),
        panel(
            "Workers that the planner wants",
            "short",
            {"{{pool}}": f"max by (pool) ({selected('xylem_planner_workers', OF_POOL)})"},
        ),
        panel(
            "The planner's reasons",
            "short",
            {"{{pool}} {{reason}}": f"max by (pool, reason) ({selected('xylem_planner_reason', OF_POOL)}) > 0"},
            "Why it wants so many: the guide to the planner explains each.",
        ),
        panel(
            "Requests that the planner expects",
            "reqps",
            {"{{pool}}": f"max by (pool) ({selected('xylem_planner_expected_per_second', OF_POOL)})"},
        ),
        panel(
            "Seats in use",
            "percentunit",
            {"{{pool}}": ratio(by_pool(per_worker("xylem_worker_running")), by_pool(per_worker("xylem_worker_seats")))},
            "Requests that engines run, of those that they can run at once.",
        ),
        panel("Requests waiting in engines", "short", {WORKER: per_worker("xylem_worker_waiting")}),
        panel(
            "Busy",
            "percentunit",
            {WORKER: worker_rate("xylem_worker_busy_seconds_total")},
            "The share of the time in which the engine had anything to do.",
        ),
        panel(
            "KV blocks in use",
            "percentunit",
            {WORKER: ratio(per_worker("xylem_worker_used_blocks"), per_worker("xylem_worker_total_blocks"))},
            "By requests: what is only cached is free.",
        ),
        panel("Prompt tokens computed", "ops", {WORKER: worker_rate("xylem_worker_prefill_tokens_total")}),
        panel(
            "Requests moved and workers lost",
            "ops",
            {
                "moved: {{kind}}": sum_by("kind", rate("xylem_migrations_total")),
                "workers lost": f"sum ({rate('xylem_workers_lost_total')})",
            },
        ),
        panel(
            "Gaps in token streams", "ops", {"{{outcome}}": or_zero(sum_by("outcome", rate("xylem_stream_gaps_total")))}
        ),
        panel("Redis answers", "short", {"{{instance}}": "min by (instance) (xylem_redis_up)"}),
        panel(
            "Event loops: API replicas, p99",
            "s",
            quantiles("xylem_loop_delay_seconds", "instance", of=(0.99,)),
            "How late they are. Above 50 ms, tokens of all streams are: start another replica.",
        ),
        panel("Event loops: workers, longest delay", "s", {WORKER: per_worker("xylem_worker_loop_delay_seconds")}),
        panel("Model load time", "s", {WORKER: per_worker("xylem_worker_load_seconds")}),
        panel("CPU", "percentunit", {"{{job}} {{instance}}": rate("process_cpu_seconds_total", 'job=~"xylem-.*"')}),
        panel(
            "Memory", "bytes", {"{{job}} {{instance}}": selected("process_resident_memory_bytes", 'job=~"xylem-.*"')}
        ),
        panel(
            "Prompts sent to other cells", "ops", {"{{cell}}": or_zero(sum_by("cell", rate("xylem_cell_sent_total")))}
        ),
    ),
)
