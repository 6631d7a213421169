"""Prometheus' counters by tenant. Names are bounded: each is a series in every API replica."""

from app.errors import OK, REFUSED
from app.ids import TenantId
from app.telemetry import TENANT_ENGINE, TENANT_REQUESTS, TENANT_TOKENS
from app.usage.record import UsageRecord

_NAMED = 100
OTHER = "other"  # all tenants together that came later


class _OfOne:
    """One tenant's, looked up once."""

    def __init__(self, name: str) -> None:
        self._ok, self._refused, self._failed = (TENANT_REQUESTS.labels(name, one) for one in (OK, "refused", "failed"))
        self._kinds = [TENANT_TOKENS.labels(name, kind) for kind in ("prompt", "cached", "completion")]
        self._engine = TENANT_ENGINE.labels(name)

    def ended(self, record: UsageRecord) -> None:
        outcome = record.outcome
        (self._ok if outcome == OK else self._refused if outcome in REFUSED else self._failed).inc()
        tokens = record.prompt_tokens, record.cached_tokens, record.completion_tokens
        for kind, count in zip(self._kinds, tokens, strict=True):
            kind.inc(count)
        self._engine.inc(record.engine_s)


class TenantMeters:
    def __init__(self, most: int = _NAMED) -> None:
        self._named = most
        self._known: dict[TenantId, _OfOne] = {}
        self._other: _OfOne | None = None

    def ended(self, record: UsageRecord) -> None:
        meters = self._known.get(record.tenant)
        if meters is None:
            if len(self._known) < self._named:
                meters = self._known[record.tenant] = _OfOne(record.tenant)
            else:
                meters = self._other = self._other or _OfOne(OTHER)
        meters.ended(record)


TENANTS = TenantMeters()
