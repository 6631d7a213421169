"""The dashboard of tenants: what each uses, and whether all is written down. At most a hundred have their name here."""

from ops.observability.panels import Dashboard, or_zero, panel, rate, ratio, sum_by


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
        panel("Requests", "reqps", {_TENANT: sum_by("tenant", rate("xylem_tenant_requests_total"))}),
        panel("Tokens of prompts", "ops", {_TENANT: _tokens("prompt")}),
        panel("Tokens of answers", "ops", {_TENANT: _tokens("completion")}),
        panel(
            "Share of engines' time",
            "percentunit",
            {_TENANT: f"{sum_by('tenant', _ENGINE)} / scalar(sum ({_ENGINE}))"},
            "Of what answered requests took of workers.",
        ),
        panel("Cached share of prompts", "percentunit", {_TENANT: ratio(_tokens("cached"), _tokens("prompt"))}),
        panel(
            "Requests without an answer",
            "percentunit",
            {
                _TENANT: or_zero(
                    ratio(
                        sum_by("tenant", rate("xylem_tenant_requests_total", 'outcome!="ok"')),
                        sum_by("tenant", rate("xylem_tenant_requests_total")),
                    )
                )
            },
            "They failed, were refused, or cancelled by their client.",
        ),
        panel(
            "Usage that is not in SQL yet",
            "short",
            {"entries": "max (xylem_usage_waiting)"},
            "About 250,000 entries fit into Redis; a writer takes all within a second or two.",
        ),
        panel(
            "Lost records of usage",
            "ops",
            {"lost": f"sum ({rate('xylem_usage_lost_total')})"},
            "Redis was away for too long.",
        ),
        panel(
            "The content hook",
            "ops",
            {name: or_zero(f"sum ({_inspected(outcomes)})") for name, outcomes in _OUTCOMES.items()},
            "Prompts and answers a second, of all tenants. Not asked: it gave no answer in time.",
        ),
    ),
)
