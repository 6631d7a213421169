"""Loggers, and the names of all metrics.

A log event is a verb with fields, never a prompt or a secret. Metrics are observed once per request, at its
end: nothing here runs per token.
"""

import math
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import structlog
from prometheus_client import Counter as _Counter
from prometheus_client import Gauge
from prometheus_client import Histogram as _Histogram

from app.errors import OK, OUTCOMES
from app.ids import PoolId

_TTFT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TOKEN_BUCKETS = tuple(2**power for power in range(4, 18))
_ITL_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1)
_SHARED_EVERY_S = 1.0


class Counter(_Counter):
    """A counter without a lock: only the event loop's thread counts, and it is the one asked for the metrics."""

    def inc(self, amount: float = 1, exemplar: dict[str, str] | None = None) -> None:
        self._value._value += amount  # noqa: SLF001 (a client's own value, without its lock)


class Histogram(_Histogram):
    """A histogram without locks, as `Counter`: 0.2 µs instead of 1.0, and a request has some fifteen observations."""

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        self._sum._value += amount  # noqa: SLF001 (a client's own value, without its lock)
        self._buckets[bisect_left(self._upper_bounds, amount)]._value += 1  # noqa: SLF001 (a client's own value, without its lock)


REQUESTS = Counter(
    "xylem_requests", "Requests ended, by model and outcome (ok, or the code of an error).", ["model", "outcome"]
)
IN_FLIGHT = Gauge("xylem_requests_in_flight", "Prompts of this API replica that have not ended.")
REFUSALS = Counter(
    "xylem_refusals", "HTTP requests that got an error instead of an answer, by its code, or HTTP's status.", ["reason"]
)
for _code in sorted(OUTCOMES - {OK}):
    REFUSALS.labels(_code)  # a rate shows the first one only if there was a 0
PROMPT_TOKENS = Histogram("xylem_prompt_tokens", "A request's prompt tokens.", ["model"], buckets=_TOKEN_BUCKETS)
CACHED_TOKENS = Histogram(
    "xylem_cached_prompt_tokens",
    "Of an answered request's prompt tokens, those whose KV an engine already had.",
    ["model"],
    buckets=(0, *_TOKEN_BUCKETS),
)
HIT_RATE = Histogram(
    "xylem_kv_hit_rate",
    "The same, as a share of the request's prompt tokens.",
    ["model"],
    buckets=(0, 0.1, 0.25, 0.5, 0.75, 0.9, 1),
)
OUTPUT_TOKENS = Histogram(
    "xylem_output_tokens", "Tokens generated for a request.", ["model"], buckets=(0, 1, 2, 4, 8, *_TOKEN_BUCKETS)
)
TTFT = Histogram(
    "xylem_ttft_seconds", "From the request's arrival to its first token.", ["model"], buckets=_TTFT_BUCKETS
)
ITL = Histogram("xylem_itl_seconds", "Mean time between tokens of one request.", ["model"], buckets=_ITL_BUCKETS)
DURATION = Histogram("xylem_request_seconds", "From the request's arrival to its end.", ["model"])
FAILED = Counter("xylem_failed_request_seconds", "Of xylem_request_seconds, what requests took that failed.", ["model"])
COST = Histogram(
    "xylem_cost_worker_seconds",
    "What an answered request took of its workers: of each second, its share among all requests on the engine.",
    ["model"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)
STAGE = Histogram(
    "xylem_stage_seconds",
    "Stages of a request: placement, queue (encode_pictures where other workers encode its pictures first), prefill, "
    "decode; and where two workers share it: hop (from the end of the prefill to the decode task), resume (to its "
    "first token) and transfer (of KV, as the engine says).",
    ["model", "stage"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60),
)
PREFILLS = Counter(
    "xylem_prefills",
    "Prompts, by where they were computed: here (where the answer was), apart, or refused (apart, and again here).",
    ["model", "where"],
)
PULLED_BYTES = Counter("xylem_pulled_bytes", "Bytes of KV that decode engines have pulled from others.", ["model"])
GAPS = Counter("xylem_stream_gaps", "Gaps in the token stream of a worker, by outcome.", ["outcome"])
MIGRATIONS = Counter(
    "xylem_migrations",
    "Requests that were moved to another worker, by kind: died (with their worker), or else begun (they had output) or "
    "unbegun.",
    ["kind"],
)
for _kind in ("died", "begun", "unbegun"):
    MIGRATIONS.labels(_kind)
WORKERS_LOST = Counter("xylem_workers_lost", "Workers whose lease ended: that died. One API replica counts each.")

DECISION = Histogram(
    "xylem_routing_decision_seconds",
    "The decision about one request, without Redis.",
    ["pool"],
    buckets=(1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 0.01),
)
FLEET_READ = Histogram(
    "xylem_routing_read_seconds",
    "Reading the fleet and the prefix matches, once a round of placement.",
    buckets=(2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.1),
)
BLOCKS_MATCHED = Counter("xylem_routing_blocks_matched", "Prompt blocks that the chosen cache had.", ["pool"])
BLOCKS_MISSED = Counter(
    "xylem_routing_blocks_missed", "Prompt blocks that neither the chosen cache nor its tiers had.", ["pool"]
)
BLOCKS_TIERED = Counter(
    "xylem_routing_blocks_tiered", "Prompt blocks that a tier behind the chosen cache had.", ["pool", "tier"]
)
AUDITED = Counter(
    "xylem_routing_audited", "Answers whose engine has told how much of the prompt it had cached.", ["pool"]
)
AUDITS_WRONG = Counter(
    "xylem_routing_audits_wrong", "Of these, those for which routing had expected another number of tokens.", ["pool"]
)
AUDIT_ERROR = Counter(
    "xylem_routing_audit_error_tokens", "By how many prompt tokens, whether too many or too few.", ["pool"]
)
IMBALANCE = Gauge(
    "xylem_routing_imbalance", "Requests of the fullest place, divided by the mean of all places.", ["pool"]
)
CELL_REACHABLE = Gauge("xylem_cell_reachable", "Whether this API replica reaches a cell: 1 or 0.", ["cell"])
CELL_REQUESTS = Gauge("xylem_cell_requests_in_flight", "Prompts of this API replica that are in a cell.", ["cell"])
CELL_SENT = Counter(
    "xylem_cell_sent", "Prompts that this API replica has sent to another cell, for want of room.", ["cell"]
)
HELD = Gauge("xylem_requests_held", "Requests that wait in this API replica until a worker has room.")
HELD_SAMPLES = Gauge(
    "xylem_media_held_bytes",
    "Bytes of pictures, sounds and embeddings over 1 MB that this process holds for its requests.",
)
LOOP_DELAY = Histogram(
    "xylem_loop_delay_seconds",
    "How late this process's event loop was, looked at twice a second.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1),
)
LOOP_FAILURES = Counter(
    "xylem_loop_failures",
    "Turns of this process's background loops that failed, by what did not happen: it was logged, and tried again.",
    ["failing"],
)
REDIS_UP = Gauge("xylem_redis_up", "Whether Redis answered when this API replica was last asked for metrics: 1 or 0.")
MEDIA = Histogram(
    "xylem_media_seconds",
    "Fetching and decoding a picture, video or sound of a request.",
    ["kind"],
    buckets=(0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)

LAST_ENDED: dict[str, float] = {}  # model → when a request of it last ended here, in seconds since the epoch

# By `app/usage/meters.py`, which bounds the tenants' names. A request without output has no tokens here.
TENANT_REQUESTS = Counter(
    "xylem_tenant_requests",
    "Requests of a tenant that have ended, by outcome: ok, refused or failed.",
    ["tenant", "outcome"],
)
TENANT_TOKENS = Counter(
    "xylem_tenant_tokens", "Tokens of a tenant's requests: prompt, cached (of these), completion.", ["tenant", "kind"]
)
TENANT_ENGINE = Counter(
    "xylem_tenant_engine_seconds",
    "What a tenant's answered requests took of workers, as xylem_cost_worker_seconds.",
    ["tenant"],
)
USAGE_LOST = Counter("xylem_usage_lost", "Records of usage that were dropped, since Redis was away for too long.")


INSPECTIONS = Counter(
    "xylem_content_inspections",
    "Prompts and answers that the content hook was asked about, by outcome: allowed, refused, unavailable (the request "
    "failed), passed_unseen (it went on).",
    ["part", "outcome"],
)


class Place(Protocol):
    """A place of a pool."""

    @property
    def requests(self) -> int: ...


class RoutingMeters:
    """One pool's routing metrics, looked up once."""

    def __init__(self, pool: PoolId) -> None:
        self._seconds, self._imbalance = DECISION.labels(pool), IMBALANCE.labels(pool)
        self._matched, self._missed = BLOCKS_MATCHED.labels(pool), BLOCKS_MISSED.labels(pool)
        self._host, self._store = (BLOCKS_TIERED.labels(pool, tier) for tier in ("host", "store"))
        self._audited, self._wrong = AUDITED.labels(pool), AUDITS_WRONG.labels(pool)
        self._error = AUDIT_ERROR.labels(pool)
        self._shared_at = -math.inf  # monotonic

    def audited(self, expectation: int, cached_tokens: int) -> None:
        """Records how many tokens of a prompt the engine had, of which so many were expected."""
        self._audited.inc()
        if expectation != cached_tokens:
            self._wrong.inc()
            self._error.inc(abs(expectation - cached_tokens))

    def decided(self, cached_tokens: int, blocks: int, seconds: float, host: int = 0, store: int = 0) -> None:
        """Records the decision about a prompt of `blocks`, of which the chosen place has the first `cached_tokens`.

        `host`, `store`: what it loads from its tiers.
        """
        self._seconds.observe(seconds)
        self._matched.inc(cached_tokens)
        self._missed.inc(max(0, blocks - cached_tokens - host - store))
        if host or store:
            self._host.inc(host)
            self._store.inc(store)

    def shared(self, places: Sequence[Place]) -> None:
        """Records how many requests each place of the pool has; once a second, as it takes as long as a choice."""
        now = time.monotonic()
        if now - self._shared_at < _SHARED_EVERY_S:
            return
        requests, self._shared_at = [place.requests for place in places], now
        total = sum(requests)
        if total:
            self._imbalance.set(max(requests) * len(requests) / total)


class Meters:
    """One model's metrics, looked up once."""

    def __init__(self, model: str) -> None:
        self.model = model
        self._ok = REQUESTS.labels(model, OK)
        self.prompt_tokens = PROMPT_TOKENS.labels(model)
        self.cached_tokens, self.hit_rate = CACHED_TOKENS.labels(model), HIT_RATE.labels(model)
        self.output_tokens = OUTPUT_TOKENS.labels(model)
        self.ttft = TTFT.labels(model)
        self.itl = ITL.labels(model)
        self._duration, self._failed = DURATION.labels(model), FAILED.labels(model)
        self.cost = COST.labels(model)
        self.pulled_bytes = PULLED_BYTES.labels(model)
        self._prefills = {where: PREFILLS.labels(model, where) for where in ("here", "apart", "refused")}
        self._stages: dict[str, Histogram] = {}

    def stages(self, seconds: Mapping[str, float], where: Literal["here", "apart", "refused"]) -> None:
        """Records the stages of a request; `where`: its prompt was computed."""
        self._prefills[where].inc()
        for stage, took in seconds.items():
            meter = self._stages.get(stage)
            if meter is None:
                meter = self._stages[stage] = STAGE.labels(self.model, stage)
            meter.observe(took)

    def ended(self, outcome: str, when: float, took: float) -> None:
        """Records the end of a request. `when`: seconds since the epoch."""
        self._duration.observe(took)
        LAST_ENDED[self.model] = when
        if outcome == OK:
            self._ok.inc()
        else:
            REQUESTS.labels(self.model, outcome).inc()
            self._failed.inc(took)


def logger(name: str) -> structlog.stdlib.BoundLogger:
    log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return log
