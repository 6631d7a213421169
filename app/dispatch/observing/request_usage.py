"""A request's usage, as its end shows it: one number of tokens for the ledger, the usage records and the metrics."""

from collections.abc import Sequence

from app.dispatch.generation_base import GenerationBase
from app.dispatch.inflight import ATTEMPTS, ChoiceOutput, InFlight
from app.dispatch.observing.timeline import Timeline
from app.errors import OK
from app.tenants.cost import Used
from app.tenants.records import Client
from app.usage.record import LineTry, UsageRecord


def used_by(
    call: GenerationBase, outcome: str, pictures: int, prompts: Sequence[InFlight], outputs: Sequence[ChoiceOutput]
) -> Used | None:
    """Usage by all processes that made the answer, whether a client got it or not. None: no worker had it.

    `pictures`: pictures that are whole. `prompts`: that were sent. `outputs`: of all choices, over all attempts.
    """
    answer_tokens = sum(len(out.tokens) for out in outputs) if call.plan.generates else 0
    answer_tokens += sum(prompt.unshown for prompt in prompts)
    if outcome != OK and not answer_tokens and not any(prompt.job.worker for prompt in prompts):
        return None
    # As the engine has counted it.
    return call.plan.used(call.cached_tokens, answer_tokens, pictures, call.prompt_tokens)


def record_of(
    call: GenerationBase,
    usage: Used | None,
    client: Client,
    outcome: str,
    times: tuple[float, float, float | None],
    prompts: Sequence[InFlight],
    attempt: int,
    line: LineTry | None,
    x_request_id: str,
) -> UsageRecord:
    """`times`: when it came and ended, and its TTFT. `prompts`: that were sent. `attempt`: its first one here.

    `line`: that it answers. All whole answers of a line have one id, of which the latest ticket's counts: a batch
    worker that was paused, and taken for dead, may end what another one answers by then.
    """
    came, end, ttft_s = times
    plan, model = call.plan, call.model
    stages: dict[str, float] = {}
    engine_s, attempts = 0.0, 1
    id_, epoch, batch = call.id, attempt // ATTEMPTS, "" if line is None else line.batch
    if line is not None and outcome == OK:
        id_, epoch = line.id, line.ticket
    if prompts:
        first = prompts[0]
        attempts = first.attempts
        if first.timings:
            stages = Timeline.of(first, model.name, outcome, came, end).stages()
        for prompt in prompts:
            for timing in prompt.timings:
                engine_s += timing.cost_s
    span = stages.get
    return UsageRecord(
        id=id_,
        epoch=epoch,
        at=end,
        tenant=client.tenant.name,
        key=client.key,
        key_name=client.name,
        model=model.name,
        task=model.task,
        outcome=outcome,
        prompt_tokens=0 if usage is None else usage.prompt,
        cached_tokens=0 if usage is None else usage.cached,
        completion_tokens=0 if usage is None else usage.completion,
        images=0 if usage is None else usage.pictures,
        engine_s=engine_s,
        placement_s=span("placement", 0.0),
        queue_s=span("queue", 0.0) + span("encode_pictures", 0.0),
        prefill_s=span("prefill", 0.0),
        handover_s=span("hop", 0.0) + span("resume", 0.0),
        decode_s=span("decode", 0.0),
        ttft_s=ttft_s,
        duration_s=end - came,
        attempts=attempts,
        batch=batch,
        x_request_id=x_request_id,
        parent=plan.priced_as or model.parent or "",
    )
