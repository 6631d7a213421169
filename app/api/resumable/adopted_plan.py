"""What an answer is made of that another replica has begun."""

from collections.abc import Awaitable, Callable
from typing import Any

from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.runtime import Runtime
from app.errors import XylemError
from app.messages import KeptRequest
from app.telemetry import logger
from app.tenants.records import Limits

log = logger(__name__)

Understand = Callable[..., Awaitable[tuple[Any, GenerationPlan]]]  # as `Endpoint.understand`


async def adopted_plan(core: Runtime, kept: KeptRequest, within: Limits, understand: Understand) -> GenerationPlan:
    """With its media as they were when the request came. Raises: XylemError.

    They are in Redis, unless that has lost them, or their replica died before it had written them: then they are read
    again, and taken if they are still the same.
    """
    history = {"history": kept.response.history} if kept.response.history else {}
    _body, plan = await understand(core.asked_by(kept.key, kept.media, within), kept.body, **history)
    store = core.dispatcher.media
    if not kept.media or store is None or await store.has(kept.media):
        return plan
    try:
        _body, again = await understand(core.asked_by(kept.key, (), within), kept.body, **history)
    except XylemError as exc:
        log.warning("media_not_read_again", request=kept.id, **kept.names, error=exc.message)
        return plan
    return again if [sample.media for sample in again.samples.values()] == [*kept.media] else plan
