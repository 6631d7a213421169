"""Converts our requests to vLLM's, and vLLM's outputs and errors to ours."""

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from vllm import SamplingParams
from vllm.exceptions import GracefulHTTPError, VLLMClientError
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from app.engines.base import GenerateRequest, StepOutput
from app.errors import EngineDead, EngineFailed, RequestError, Saturated, XylemError
from app.messages.events import TokenLogprob
from app.messages.job import Grammar, Sampling
from app.messages.kinds import FinishReason

_TOO_MANY = re.compile(r"At most (\d+) (image|audio|video)\(s\) may be provided in one prompt")
_NAMES = {"image": "pictures", "audio": "sounds", "video": "videos"}


def sampling_params(sampling: Sampling, extra_args: dict[str, Any] | None = None) -> SamplingParams:
    """Raises: RequestError."""
    if sampling.n > 1 and sampling.temperature == 0:
        raise RequestError("'n': vLLM makes one choice where 'temperature' is 0: all would be the same.", param="n")
    try:
        return _sampling_params(sampling, extra_args or None)
    except (VLLMClientError, ValueError, TypeError) as exc:
        raise RequestError(str(exc)) from exc


def step_outputs(out: RequestOutput, request: GenerateRequest, cached_tokens: int) -> list[StepOutput]:
    """One output of vLLM as a step for each choice. Raises: EngineFailed."""
    prompt_logprobs: list[TokenLogprob | None] | None = None
    if out.prompt_logprobs:  # vLLM gives them once, then an empty list
        pairs = zip(request.prompt, out.prompt_logprobs, strict=True)
        top = request.sampling.prompt_logprobs or 0
        prompt_logprobs = [_token_logprob(token, entries, top) if entries else None for token, entries in pairs]
    return [_step_output(choice, request.sampling, cached_tokens, prompt_logprobs) for choice in out.outputs]


def translate(exc: Exception) -> XylemError:
    """vLLM's error as ours. vLLM wraps unforeseen errors; a ValueError inside is the request's fault all the same."""
    match exc:
        case XylemError():
            return exc
        case EngineDeadError():
            return EngineDead(f"vLLM's engine process died: {exc}")
        case GracefulHTTPError():
            return Saturated(exc.message)
        case VLLMClientError():
            return RequestError(_reason(exc))
        case EngineGenerateError() if isinstance(exc.__cause__, ValueError | VLLMClientError):
            return RequestError(_reason(exc.__cause__))
        case _:
            return EngineFailed(f"vLLM failed: {exc.__cause__ or exc!r}")


def _reason(exc: Exception) -> str:
    """The reason why vLLM refuses a request, in our words if clients meet it often."""
    match = _TOO_MANY.match(str(exc))
    if match is None:
        return str(exc)
    return f"This model's engine takes at most {match[1]} {_NAMES[match[2]]} in a prompt (args.limit_mm_per_prompt)."


def _sampling_params(s: Sampling, extra_args: dict[str, Any] | None) -> SamplingParams:
    return SamplingParams(
        n=s.n,
        max_tokens=s.max_tokens,
        min_tokens=s.min_tokens,
        temperature=s.temperature,
        top_p=s.top_p,
        top_k=s.top_k,
        min_p=s.min_p,
        presence_penalty=s.presence_penalty,
        frequency_penalty=s.frequency_penalty,
        repetition_penalty=s.repetition_penalty,
        seed=s.seed,
        stop=list(s.stop),
        stop_token_ids=list(s.stop_token_ids),
        include_stop_str_in_output=s.include_stop,
        ignore_eos=s.ignore_eos,
        logprobs=s.logprobs,
        prompt_logprobs=s.prompt_logprobs,
        logit_bias=s.logit_bias,
        skip_special_tokens=not s.special_tokens,
        output_kind=RequestOutputKind.DELTA,
        extra_args=extra_args,
        structured_outputs=None if s.grammar is None else _structured_outputs(s.grammar),
        skip_clone=True,  # vLLM may modify it: it is used once
    )


def _structured_outputs(grammar: Grammar) -> StructuredOutputsParams:
    match grammar.kind:
        case "choice":
            return StructuredOutputsParams(choice=json.loads(grammar.text))
        case "tag":
            return StructuredOutputsParams(structural_tag=grammar.text)
    return StructuredOutputsParams(**{grammar.kind: grammar.text})


def _step_output(
    out: CompletionOutput, sampling: Sampling, cached_tokens: int, prompt_logprobs: list[TokenLogprob | None] | None
) -> StepOutput:
    tokens = list(out.token_ids)
    logprobs = None
    if sampling.logprobs is not None and out.logprobs is not None:
        pairs = zip(tokens, out.logprobs, strict=True)
        logprobs = [_token_logprob(token, entries, sampling.logprobs) for token, entries in pairs]
    finish = None if out.finish_reason is None else _finish_reason(out.finish_reason)
    return StepOutput(
        out.text,
        tokens,
        index=out.index,
        finish=finish,
        stop=out.stop_reason,
        logprobs=logprobs,
        cached_tokens=cached_tokens,
        prompt_logprobs=prompt_logprobs,
    )


def _finish_reason(reason: str) -> FinishReason:
    if reason in ("stop", "length", "abort"):
        return cast(FinishReason, reason)
    raise EngineFailed(f"vLLM ended the request with {reason!r}.")  # of a grammar: the answer so far doesn't fit it


def _token_logprob(token: int, logprobs: Mapping[int, Logprob], top: int) -> TokenLogprob:
    ranking = sorted(logprobs.items(), key=lambda item: item[1].rank or 0)
    likeliest = [(entry.decoded_token or "", other, entry.logprob) for other, entry in ranking[:top]]
    own = logprobs[token]
    return TokenLogprob(own.decoded_token or "", token, own.logprob, likeliest, rank=own.rank or 0)
