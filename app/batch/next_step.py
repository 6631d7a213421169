"""Decides what a batch needs next. Pure."""

from typing import Literal

from app.batch.batch_store import MOST_BREAKS, BatchLoad, Fields
from app.batch.records import LIVE, Batch, Problem, packed
from app.webhooks.webhook import TRIES_AFTER_S

Due = Literal["begin", "send", "expire", "complete", "finish", "tell", "give", "leave"]

# Seconds from a batch's end until its parts and results are deleted: a Redis that comes back without its last second
# doesn't know of the end, and then both files are written once more.
_SETTLED_S = 10
_GIVEN_S = 86_400  # …until nobody waits for its answers any more: Celery's results live as long


def due(batch: Batch, load: BatchLoad, now: float, *, webhook: bool) -> Due | None:
    """The batch's next step; None while a batch worker does it, or until it is time. `webhook`: one is configured."""
    if batch.status not in LIVE:
        if not batch.cleaned and load.holder is None and now >= batch.ended_at + _SETTLED_S:
            return "finish"
        untold = webhook and not batch.told and batch.tries <= len(TRIES_AFTER_S)
        if untold and now >= batch.tell_at:
            return "tell"
        if batch.order.waits and not batch.given and now < batch.ended_at + _GIVEN_S:
            return "give"
        return None if untold or not batch.cleaned else "leave"
    if batch.status in ("validating", "in_progress") and now >= batch.order.expires:
        return "expire"
    if batch.status == "validating":
        return "begin" if load.holder is None else None
    if batch.status == "in_progress":
        return "send" if load.todo or load.taken else "complete"
    # Cancelling or finalizing: batch workers return its parts first.
    if load.taken:
        return "send"
    return "finish" if load.holder is None else None


def after_break(batch: Batch, now: float) -> Fields:
    """The fields to set after an internal error in its next step. Redis or storage failures don't count."""
    if batch.broke + 1 < MOST_BREAKS:
        return {"broke": batch.broke + 1}
    return given_up(batch, now, f"{MOST_BREAKS} tries ended in an internal error.")


def given_up(batch: Batch, now: float, why: str) -> Fields:
    """The fields to set when its next step isn't tried any more."""
    if batch.status not in LIVE:  # its parts and results stay in the storage
        return {"cleaned": 1}
    what = "validated" if batch.status == "validating" else "finished"
    problem = Problem("internal_error", f"The batch could not be {what}: {why}")
    return {"status": "failed", "failed_at": int(now), "problems": packed([problem]), "broke": 0}
