"""What a request used, as its end shows it."""

from collections.abc import Sequence

from app.dispatch.generation_base import GenerationBase
from app.dispatch.inflight import ATTEMPTS, ChoiceOutput, InFlight
from app.dispatch.timeline import Timeline
from app.errors import OK
from app.tenants.records import Client
from app.usage.record import UsageRecord


def record_of(
    call: GenerationBase,
    client: Client,
    outcome: str,
    times: tuple[float, float, float | None],
    prompts: Sequence[InFlight],
    outputs: Sequence[ChoiceOutput],
    attempt: int,
    batch: str,
    x_request_id: str,
) -> UsageRecord:
    """`times`: when it came and ended, and its TTFT. `prompts`: that were sent. `outputs`: of all choices.

    `attempt`: its first one here.
    """
    came, ended, ttft_s = times
    plan, model = call.plan, call.model
    made = sum(len(out.tokens) for out in outputs) if plan.generates else 0
    counts = outcome == OK or made > 0  # else the client has got nothing
    stages: dict[str, float] = {}
    engine_s, attempts, epoch = 0.0, 1, attempt // ATTEMPTS
    if prompts:
        first = prompts[0]
        attempts = first.attempts
        if first.timings:
            stages = Timeline.of(first, model.name, outcome, came, ended).stages()
        for prompt in prompts:
            for timing in prompt.timings:
                engine_s += timing.cost_s
    span = stages.get
    return UsageRecord(
        call.id, epoch, ended, client.tenant.name, client.key, client.name, model.name, model.task, outcome,
        call.prompt_tokens if counts else 0, call.cached_tokens if counts else 0, made,
        len(call.pictures) if outcome == OK else 0, engine_s,
        span("placement", 0.0), span("queue", 0.0), span("prefill", 0.0), span("hop", 0.0) + span("resume", 0.0),
        span("decode", 0.0), ttft_s, ended - came, attempts, batch, x_request_id, plan.priced_as or model.parent or "",
    )  # fmt: skip
