"""Has another model of an alias answer, if the first one refuses."""

from dataclasses import replace
from functools import partial

from app.api.intake.calls import Other
from app.dispatch.asking import Asking
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.models.aliases import AliasTurn
from app.endpoint_registry import Endpoint
from app.schemas.body import NamesModel


def other_plan(asking: Asking, endpoint: Endpoint, body: NamesModel, plan: GenerationPlan, raw: bytes) -> Other | None:
    """Makes the plan for another model of the alias that the request names; None: there is none."""
    if asking.turn.fixed or not asking.serving.aliases.has_other(body.asked, plan.model.name):
        return None
    return partial(_planned, replace(asking, turn=AliasTurn(refused=plan.model.name)), endpoint, raw)


async def _planned(asking: Asking, endpoint: Endpoint, raw: bytes) -> GenerationPlan:
    """Raises: XylemError."""
    result: tuple[object, GenerationPlan] = await endpoint.understand(asking, raw)
    return result[1]
