"""Adds an answer to its request's trace: attributes by OpenTelemetry's conventions for generative AI, and spans.

No text of a prompt or an answer: no stop strings either.
"""

from collections.abc import Mapping, Sequence

from app.dispatch.generation_base import GenerationBase
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.inflight import InFlight
from app.dispatch.observing.attempt_spans import attempt_spans
from app.endpoints import TEXT
from app.errors import OK
from app.ids import RequestId
from app.messages.kinds import Task
from app.tracing.request_trace import RequestTrace
from app.tracing.span import Attribute, SpanEvent

# What the conventions name is named so; they have no names for the others.
_OPERATIONS: Mapping[Task, str] = {
    "generate": "chat",
    "embed": "embeddings",
    "classify": "classify",
    "image": "generate_content",
    "transcribe": "transcribe",
}
_TEXT = "text_completion"  # of a plan without a chat template

_MOST = 32  # prompts whose attempts are shown: each takes the event loop 0.1 ms


def end_trace(
    trace: RequestTrace,
    call: GenerationBase,
    in_flight: Sequence[InFlight],
    outcome: str,
    *,
    first_token: float | None,
) -> None:
    """The answer has ended, and with it the trace if nothing else is to come. `first_token`: as in `add_answer`."""
    trace.error = "" if outcome == OK else outcome
    if trace.sampled:
        add_answer(trace, call.plan, call.id, in_flight, call.tokens(), first_token=first_token, error=trace.error)
    if trace.ends_with_answer:
        trace.end()


def add_answer(
    trace: RequestTrace,
    plan: GenerationPlan,
    answer: RequestId,
    in_flight: Sequence[InFlight],
    tokens: tuple[int, int, int],
    first_token: float | None,
    error: str,
) -> None:
    """Adds an answer to its request's trace, at its end.

    `tokens`: of prompts, of these cached, of the answer. `error`: its code; "": it is whole. `first_token`: when the
    answer's first token was here, seconds since the epoch; None: it has none.
    """
    operation = _TEXT if plan.prefix == TEXT.prefix else _OPERATIONS[plan.model.task]
    trace.name = f"{operation} {plan.model.name}"
    trace.attributes |= _attributes(plan, operation, answer, tokens)
    if in_flight:
        trace.attributes |= {"xylem.x_request_id": in_flight[0].job.x_request_id, "xylem.prompts": len(in_flight)}
    if first_token is not None:
        trace.events.append(SpanEvent("first_token", first_token))
    for inflight in in_flight[:_MOST]:
        inflight.log_attempt(error)
        attempts = inflight.log.attempts if inflight.log is not None else []
        alone = len(in_flight) == len(attempts) == 1  # else nobody knows whose token it is
        for attempt in attempts:
            trace.spans += attempt_spans(attempt, trace.place.span, first_token if alone else None)


def _attributes(
    plan: GenerationPlan, operation: str, answer: RequestId, tokens: tuple[int, int, int]
) -> dict[str, Attribute]:
    prompt, cached_tokens, completion = tokens
    attributes: dict[str, Attribute] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "xylem",
        "gen_ai.request.model": plan.model.name,
        "gen_ai.response.model": plan.model.name,
        "gen_ai.response.id": answer,
        "gen_ai.usage.input_tokens": prompt,
        "gen_ai.usage.cache_read.input_tokens": cached_tokens,
        "gen_ai.usage.output_tokens": completion,
    }
    return attributes | _sampling(plan) if plan.model.task == "generate" else attributes


def _sampling(plan: GenerationPlan) -> dict[str, Attribute]:
    s = plan.sampling[0]
    attributes: dict[str, Attribute] = {
        "gen_ai.request.choice.count": plan.choices,
        "gen_ai.request.max_tokens": s.max_tokens,
        "gen_ai.request.temperature": s.temperature,
        "gen_ai.request.top_p": s.top_p,
        "gen_ai.request.presence_penalty": s.presence_penalty,
        "gen_ai.request.frequency_penalty": s.frequency_penalty,
    }
    if s.top_k:
        attributes["gen_ai.request.top_k"] = s.top_k
    if s.seed is not None:
        attributes["gen_ai.request.seed"] = s.seed
    return attributes
