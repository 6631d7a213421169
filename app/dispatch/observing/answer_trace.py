"""Adds an answer to its request's trace: attributes by OpenTelemetry's conventions for generative AI, and spans.

No text of a prompt or an answer: no stop strings either.
"""

from collections.abc import Mapping, Sequence

from app.dispatch.generation_base import GenerationBase
from app.dispatch.inflight import InFlight
from app.dispatch.observing.attempt_spans import attempt_spans
from app.endpoints import TEXT
from app.errors import OK
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
    """Adds an answer to its request's trace, at its end, and ends the trace if nothing else is to come.

    `first_token`: when the
    answer's first token was here, seconds since the epoch; None: it has none.
    """
    trace.error = "" if outcome == OK else outcome
    if trace.sampled:
        _add_answer(trace, call, in_flight, first_token)
    if trace.ends_with_answer:
        trace.end()


def _add_answer(
    trace: RequestTrace, call: GenerationBase, in_flight: Sequence[InFlight], first_token: float | None
) -> None:
    operation = _TEXT if call.plan.prefix == TEXT.prefix else _OPERATIONS[call.model.task]
    trace.name = f"{operation} {call.model.name}"
    trace.attributes |= _attributes(call, operation)
    if in_flight:
        trace.attributes |= {"xylem.x_request_id": in_flight[0].job.x_request_id, "xylem.prompts": len(in_flight)}
    if first_token is not None:
        trace.events.append(SpanEvent("first_token", first_token))
    for inflight in in_flight[:_MOST]:
        inflight.log_attempt(trace.error)
        attempts = inflight.log.attempts if inflight.log is not None else []
        alone = len(in_flight) == len(attempts) == 1  # else nobody knows whose token it is
        for attempt in attempts:
            trace.spans += attempt_spans(attempt, trace.place.span, first_token if alone else None)


def _attributes(call: GenerationBase, operation: str) -> dict[str, Attribute]:
    prompt, cached_tokens, completion = call.tokens()
    attributes: dict[str, Attribute] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "xylem",
        "gen_ai.request.model": call.model.name,
        "gen_ai.response.model": call.model.name,
        "gen_ai.response.id": call.id,
        "gen_ai.usage.input_tokens": prompt,
        "gen_ai.usage.cache_read.input_tokens": cached_tokens,
        "gen_ai.usage.output_tokens": completion,
    }
    return attributes | _sampling(call) if call.model.task == "generate" else attributes


def _sampling(call: GenerationBase) -> dict[str, Attribute]:
    s = call.plan.sampling[0]
    attributes: dict[str, Attribute] = {
        "gen_ai.request.choice.count": call.choices,
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
