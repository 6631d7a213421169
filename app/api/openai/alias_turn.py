"""Chooses among the models of an alias, for a request over HTTP."""

import hashlib
from dataclasses import replace
from functools import partial

from starlette.types import Scope

from app.api.intake.calls import Other, asks_to_keep
from app.api.state import ApiState
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.models.aliases import Turn
from app.endpoint_registry import Endpoint
from app.schemas.body import NamesModel


def in_turn(state: ApiState, raw: bytes, scope: Scope) -> ApiState:
    """The state for a request: one that may be repeated, to resume or join its answer, chooses by its body."""
    if b"file_id" in raw:
        state = state.asked_by(state.api_keys.owner(scope))
    if not state.aliases.table or not asks_to_keep(scope):
        return state
    return replace(state, turn=Turn(hashlib.sha256(raw).hexdigest(), fixed=True))


def other_plan(
    state: ApiState, endpoint: Endpoint, body: NamesModel, plan: GenerationPlan, raw: bytes, *, explain: bool
) -> Other | None:
    """Makes the plan for another model of the alias that the request names; None: there is none."""
    if state.turn.fixed or not state.aliases.has_other(body.asked, plan.model.name):
        return None
    return partial(_planned, replace(state, turn=Turn(refused=plan.model.name)), endpoint, raw, explain=explain)


async def _planned(state: ApiState, endpoint: Endpoint, raw: bytes, *, explain: bool) -> GenerationPlan:
    """Raises: XylemError."""
    result: tuple[object, GenerationPlan] = await endpoint.understand(state, raw, explain=explain)
    return result[1]
