"""Our requests as TensorRT-LLM's, its outputs and errors as ours."""

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from tensorrt_llm.sampling_params import GuidedDecodingParams, SamplingParams

from app.engines.trtllm.steering import Steering
from app.errors import EngineFailed, RequestError, XylemError
from app.messages.events import TokenLogprob
from app.messages.job import Grammar, Sampling
from app.messages.kinds import FinishReason
from app.tokenizing.token_names import TokenNames

_UNKNOWN = -9999.0  # OpenAI's logprob where none is known
_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length", "cancelled": "abort"}


def sampling_params(
    s: Sampling, *, eos: int | None, stops: Sequence[int], prompt_len: int, vocabulary: int, steering: Steering | None
) -> SamplingParams:
    """Parameters of one choice.

    `stops`: tokens that end it besides `eos`. `prompt_len`: without what is out of the answer. Stop strings are ours to
    find: TensorRT-LLM knows them as tokens only. Raises: RequestError.
    """
    greedy = s.temperature == 0
    try:
        return SamplingParams(
            end_id=eos,
            pad_id=eos,
            max_tokens=s.max_tokens,
            min_tokens=s.min_tokens or None,
            temperature=None if greedy else s.temperature,
            top_p=None if greedy else s.top_p,
            top_k=1 if greedy else s.top_k,
            min_p=s.min_p or None,
            presence_penalty=s.presence_penalty or None,
            frequency_penalty=s.frequency_penalty or None,
            repetition_penalty=None if s.repetition_penalty == 1 else s.repetition_penalty,
            prompt_ignore_length=prompt_len,  # else presence and frequency count the prompt's tokens
            # Without a seed all requests share one.
            seed=s.seed if s.seed is not None or greedy else secrets.randbits(63),
            stop_token_ids=list(stops) or None,
            ignore_eos=s.ignore_eos,
            logprobs=None if s.logprobs is None else max(1, s.logprobs),  # 0 turns them off
            prompt_logprobs=None if s.prompt_logprobs is None else max(1, s.prompt_logprobs),
            embedding_bias=_bias(s.logit_bias, vocabulary) if s.logit_bias else None,
            logits_processor=steering,
            guided_decoding=None if s.grammar is None else _guided(s.grammar),
            detokenize=False,
            add_special_tokens=False,
        )
    except (ValueError, TypeError) as exc:
        raise RequestError(str(exc)) from exc


def finish_reason(reason: str | None) -> FinishReason | None:
    """Raises: EngineFailed."""
    if reason is None:
        return None
    if reason not in _FINISH:
        raise EngineFailed(f"TensorRT-LLM ended the request with {reason!r}.")
    return _FINISH[reason]


def token_logprob(names: TokenNames, token: int, logprobs: Mapping[int, Any] | None, top: int) -> TokenLogprob:
    """`logprobs`: for this token and some others; None: TensorRT-LLM has none. `names`: of the text before."""
    logprobs = logprobs or {}
    ranking = sorted(((entry.logprob, other) for other, entry in logprobs.items()), reverse=True)[:top]
    likeliest = [(names.of(other), other, logprob) for logprob, other in ranking]
    own = logprobs[token].logprob if token in logprobs else _UNKNOWN
    rank = logprobs[token].rank if token in logprobs else None
    return TokenLogprob(names.add(token), token, own, likeliest, rank=rank or 0)


def priority(ours: int) -> float:
    """TensorRT-LLM's priority, from 0 to 1, of which more is sooner. Ours is any number, and less is sooner."""
    return 0.5 - ours / (2 * (abs(ours) + 16))


def translate(exc: Exception) -> XylemError:
    return exc if isinstance(exc, XylemError) else EngineFailed(f"TensorRT-LLM failed: {exc!r}")


def _guided(grammar: Grammar) -> GuidedDecodingParams:
    match grammar.kind:
        case "json":
            return GuidedDecodingParams(json=grammar.text)
        case "regex":
            return GuidedDecodingParams(regex=grammar.text)
        case "choice":  # it has none
            rules = " | ".join(json.dumps(text, ensure_ascii=False) for text in json.loads(grammar.text))
            return GuidedDecodingParams(grammar=f"root ::= {rules}")
        case "grammar":
            return GuidedDecodingParams(grammar=grammar.text)
        case "tag":
            return GuidedDecodingParams(structural_tag=grammar.text)


def _bias(biases: Mapping[int, float], vocabulary: int) -> Any:
    import torch  # only where it is asked for

    bias = torch.zeros(vocabulary, dtype=torch.float32)
    bias[list(biases)] = torch.tensor(list(biases.values()))
    return bias
