"""Plans an answer that was begun before, perhaps by another replica."""

from app.dispatch.asking import Asking
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.media.media_reader import Asker
from app.dispatch.runtime import Runtime
from app.endpoint_registry import ENDPOINTS, VIDEOS
from app.errors import XylemError
from app.messages.kept import KeptRequest
from app.telemetry import logger
from app.tenants.limit_table import TenantLimits

log = logger(__name__)

_UNDERSTAND = {endpoint.row.kind: endpoint.understand for endpoint in (*ENDPOINTS.values(), VIDEOS)}


async def adopted_plan(core: Runtime, kept_request: KeptRequest, within: TenantLimits) -> GenerationPlan:
    """The plan of a kept request, with its media as they were when it came. Raises: XylemError.

    The media are in Redis, unless that has lost them, or their replica died before it had written them: then they are
    read again, and taken if they are still the same.
    """
    understand = _UNDERSTAND[kept_request.kind]
    history = {"history": kept_request.response.history} if kept_request.response.history else {}
    plan: GenerationPlan
    _body, plan = await understand(
        Asking(core, within, Asker(kept_request.key, kept_request.media)), kept_request.body, **history
    )
    store = core.dispatcher.media
    if not kept_request.media or store is None or await store.has(kept_request.media):
        return plan
    try:
        _body, again = await understand(Asking(core, within, Asker(kept_request.key)), kept_request.body, **history)
    except XylemError as exc:
        log.warning("media_not_read_again", request=kept_request.id, **kept_request.names, error=exc.message)
        return plan
    return again if [sample.media for sample in again.samples.values()] == [*kept_request.media] else plan
