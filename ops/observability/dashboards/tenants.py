"""The dashboard of tenants: what each uses, and whether all is written down. At most a hundred have their name here."""

from ops.observability.panels import Dashboard, Panel, Query, or_zero, rate, ratio, sum_by


def _tokens(kind: str) -> str:
    return sum_by("tenant", rate("xylem_tenant_tokens_total", f'kind="{kind}"'))


def _inspected(outcomes: str) -> str:
    return rate("xylem_content_inspections_total", f'outcome=~"{outcomes}"')


_OUTCOMES = {"allowed": "allowed", "refused": "refused", "not asked": "unavailable|passed_unseen"}
_ENGINE = rate("xylem_tenant_engine_seconds_total")
_TENANT = "{{tenant}}"

TENANTS = Dashboard(
    "tenants",
    "Xylem: tenants",
    (),
    (
        Panel("Requests", "reqps", (Query(sum_by("tenant", rate("xylem_tenant_requests_total")), _TENANT),)),
        Panel("Tokens of prompts", "ops", (Query(_tokens("prompt"), _TENANT),)),
        Panel("Tokens of answers", "ops", (Query(_tokens("completion"), _TENANT),)),
        Panel(
            "Share of engines' time",
            "percentunit",
            (Query(f"{sum_by('tenant', _ENGINE)} / scalar(sum ({_ENGINE}))", _TENANT),),
            "Of what answered requests took of workers.",
        ),
        Panel("Cached share of prompts", "percentunit", (Query(ratio(_tokens("cached"), _tokens("prompt")), _TENANT),)),
        Panel(
            "Requests that failed",
            "percentunit",
            (
                Query(
                    or_zero(
                        ratio(
                            sum_by("tenant", rate("xylem_tenant_requests_total", 'outcome="failed"')),
                            sum_by("tenant", rate("xylem_tenant_requests_total")),
                        )
                    ),
                    _TENANT,
                ),
            ),
            "Or were refused, or cancelled by their client.",
        ),
        Panel(
            "Usage that is not in SQL yet",
            "short",
            (Query("max (xylem_usage_waiting)", "entries"),),
            "About 250,000 entries fit into Redis; a writer takes all within a second or two.",
        ),
        Panel(
            "Lost records of usage",
            "ops",
            (Query(f"sum ({rate('xylem_usage_lost_total')})", "lost"),),
            "Redis was away for too long.",
        ),
        Panel(
            "The content hook",
            "ops",
            tuple(Query(or_zero(f"sum ({_inspected(outcomes)})"), name) for name, outcomes in _OUTCOMES.items()),
            "Prompts and answers a second, of all tenants. Not asked: it gave no answer in time.",
        ),
    ),
)
