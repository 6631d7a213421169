"""The part of a plan that is the same for all endpoints."""

from collections.abc import Sequence

from app.dispatch.asking import Asking
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.models.models import Model
from app.messages.job import Sampling
from app.openai.schemas import ModelRequest


def plan_of(
    asking: Asking,
    body: ModelRequest,
    prefix: str,
    model: Model,
    prompts: Sequence[list[int]],
    sampling: Sequence[Sampling],
    *,
    cache_salt: str | None = None,
    whole: bool = False,
) -> GenerationPlan:
    """`prefix`: of its id. `sampling`: for each prompt."""
    return GenerationPlan(
        prefix,
        model,
        prompts,
        sampling,
        timeout_s=body.timeout or asking.serving.settings.request_timeout_s,
        priority=body.urgency,
        cache_salt=cache_salt,
        wishes=body.wishes(explain=asking.explain),
        aside=body.aside,
        whole=whole,
        tier=None if body.service_tier is None else body.tier,
        asked=body,
    )
