"""Workers, and the processes in front of them."""

from ops.observability.panels import (
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

FLEET = Dashboard(
    "fleet",
    "Xylem: fleet",
    ("pool",),
    (
        Panel(
            "Workers by state",
            "short",
            (Query(f"max by (pool, state) ({selected('xylem_workers', OF_POOL)})", "{{pool}} {{state}}"),),
        ),
        Panel(
            "Workers that the planner wants",
            "short",
            (Query(f"max by (pool) ({selected('xylem_planner_workers', OF_POOL)})", "{{pool}}"),),
        ),
        Panel(
            "The planner's reasons",
            "short",
            (Query(f"max by (pool, reason) ({selected('xylem_planner_reason', OF_POOL)}) > 0", "{{pool}} {{reason}}"),),
            "Why it wants so many: the guide to the planner explains each.",
        ),
        Panel(
            "Requests that the planner expects",
            "reqps",
            (Query(f"max by (pool) ({selected('xylem_planner_expected_per_second', OF_POOL)})", "{{pool}}"),),
        ),
        Panel(
            "Seats in use",
            "percentunit",
            (
                Query(
                    ratio(by_pool(per_worker("xylem_worker_running")), by_pool(per_worker("xylem_worker_seats"))),
                    "{{pool}}",
                ),
            ),
            "Requests that engines run, of those that they can run at once.",
        ),
        Panel("Requests waiting in engines", "short", (Query(per_worker("xylem_worker_waiting"), WORKER),)),
        Panel(
            "Busy",
            "percentunit",
            (Query(worker_rate("xylem_worker_busy_seconds_total"), WORKER),),
            "The share of the time in which the engine had anything to do.",
        ),
        Panel(
            "KV blocks in use",
            "percentunit",
            (Query(ratio(per_worker("xylem_worker_used_blocks"), per_worker("xylem_worker_total_blocks")), WORKER),),
            "By requests: what is only cached is free.",
        ),
        Panel("Prompt tokens computed", "ops", (Query(worker_rate("xylem_worker_prefill_tokens_total"), WORKER),)),
        Panel(
            "Requests moved and workers lost",
            "ops",
            (
                Query(sum_by("kind", rate("xylem_migrations_total")), "moved: {{kind}}"),
                Query(f"sum ({rate('xylem_workers_lost_total')})", "workers lost"),
            ),
        ),
        Panel(
            "Gaps in token streams",
            "ops",
            (Query(or_zero(sum_by("outcome", rate("xylem_stream_gaps_total"))), "{{outcome}}"),),
        ),
        Panel("Redis answers", "short", (Query("min by (instance) (xylem_redis_up)", "{{instance}}"),)),
        Panel(
            "Event loops: API replicas, p99",
            "s",
            quantiles("xylem_loop_delay_seconds", "instance", of=(0.99,)),
            "How late they are. Above 50 ms, tokens of all streams are: start another replica.",
        ),
        Panel(
            "Event loops: workers, longest delay", "s", (Query(per_worker("xylem_worker_loop_delay_seconds"), WORKER),)
        ),
        Panel("Model load time", "s", (Query(per_worker("xylem_worker_load_seconds"), WORKER),)),
        Panel(
            "CPU", "percentunit", (Query(rate("process_cpu_seconds_total", 'job=~"xylem-.*"'), "{{job}} {{instance}}"),)
        ),
        Panel(
            "Memory",
            "bytes",
            (Query(selected("process_resident_memory_bytes", 'job=~"xylem-.*"'), "{{job}} {{instance}}"),),
        ),
        Panel(
            "Prompts sent to other cells",
            "ops",
            (Query(or_zero(sum_by("cell", rate("xylem_cell_sent_total"))), "{{cell}}"),),
        ),
    ),
)
