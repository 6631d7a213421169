"""Chooses among the models of an alias, for a request over HTTP."""

import hashlib
from dataclasses import replace
from functools import partial

from starlette.types import Scope

from app.api.intake.calls import Other, asks_to_keep
from app.api.state import ApiState, asking_of
from app.dispatch.asking import Asking
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.models.aliases import Turn
from app.endpoint_registry import Endpoint
from app.schemas.body import NamesModel


def asking_in_turn(state: ApiState, raw: bytes, scope: Scope) -> Asking:
    """A request: one that may be repeated, to resume or join its answer, chooses by its body."""
    asking = asking_of(state, scope)
    if not state.aliases.table or not asks_to_keep(scope):
        return asking
    return replace(asking, turn=Turn(hashlib.sha256(raw).hexdigest(), fixed=True))


def other_plan(asking: Asking, endpoint: Endpoint, body: NamesModel, plan: GenerationPlan, raw: bytes) -> Other | None:
    """Makes the plan for another model of the alias that the request names; None: there is none."""
    if asking.turn.fixed or not asking.serving.aliases.has_other(body.asked, plan.model.name):
        return None
    return partial(_planned, replace(asking, turn=Turn(refused=plan.model.name)), endpoint, raw)


async def _planned(asking: Asking, endpoint: Endpoint, raw: bytes) -> GenerationPlan:
    """Raises: XylemError."""
    result: tuple[object, GenerationPlan] = await endpoint.understand(asking, raw)
    return result[1]
