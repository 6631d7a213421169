"""Explains why a request was placed where it was, for traces, and for clients that send `x-xylem-explain: 1`."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from app.dispatch.inflight import InFlight
from app.messages.job import Job
from app.messages.kinds import StageKind
from app.routing.candidates import Decision, Tiered

_EXPLAINED = 8  # the first prompts of a request, in its header
_MOST = 8  # candidates shown: proxies let only some kilobytes of headers through


def header(in_flight: Sequence[InFlight]) -> str:
    """The header x-xylem-route of a request."""
    return orjson.dumps(
        [explained(f.job, f.attempt.decisions, candidates=i == 0) for i, f in enumerate(in_flight[:_EXPLAINED])]
    ).decode()


def explained(job: Job, decisions: Mapping[StageKind, Decision], *, candidates: bool) -> dict[str, Any]:
    """Its worker, and the candidates by cost, cheapest first (`kv`: seconds; other policies: their own unit)."""
    if not decisions:
        return {}
    decision = list(decisions.values())[-1]  # of the worker that answers
    to = decision.placement
    ranking = sorted(decision.scored, key=lambda s: s[1].total)
    explanation = {
        "worker": to.worker,
        "pool": to.pool,
        "rank": to.rank,
        "attempt": job.attempt,
        "policy": decision.policy,
        "blocks_cached": to.cached,
        "tokens_to_compute": to.tokens,
        **_tiers(to.tiered),
    }
    if "prefill" in decisions:
        far = decisions["prefill"].placement
        explanation["prefill"] = {
            "worker": far.worker,
            "pool": far.pool,
            "rank": far.rank,
            "blocks_cached": far.cached,
            "tokens_to_compute": far.tokens,
        }
        explanation["blocks_to_pull"] = to.pulls
    if not candidates:
        return explanation
    return explanation | {
        "candidates": [
            {
                "worker": option.candidate.lease.worker.id,
                "rank": option.candidate.rank,
                "blocks_cached": option.cached,
                "blocks_coming": option.coming - option.cached,
                **(_tiers(option.tiered) if option.loads else {}),
                "requests": option.candidate.requests,
                "waiting": option.candidate.waiting,
                "queued_tokens": option.candidate.tokens,
                "wait": round(cost.wait, 6),
                "prefill": round(cost.prefill, 6),
                "others": round(cost.others, 6),
                **({"saves": round(cost.saves, 6)} if cost.saves else {}),
            }
            for option, cost in ranking[:_MOST]
        ],
    }


def _tiers(tiers: Tiered) -> dict[str, int]:
    """Blocks that are loaded, where there are some."""
    return {"blocks_in_host": tiers.host, "blocks_in_store": tiers.store} if tiers.blocks else {}
