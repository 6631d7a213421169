"""The fields that answers in OpenAI's shapes have around their choices or data."""

from app.dispatch.generation_base import GenerationBase
from app.openai.answer_types import Envelope, K, Usage

_OWN = "initial"  # how an answer names the pool's own weights beside others


def envelope(call: GenerationBase, kind: K) -> Envelope[K]:
    fields: Envelope[K] = {"id": call.id, "object": kind, "created": call.created, "model": call.model.name}
    if call.plan.tier:
        fields["service_tier"] = call.plan.tier
    if any(call.weights):
        fields["system_fingerprint"] = "+".join(version or _OWN for version in call.weights)
    return fields


def usage(call: GenerationBase) -> Usage:
    prompt, cached_tokens, completion = call.tokens()
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
