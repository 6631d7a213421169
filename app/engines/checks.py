"""Checks requests for engines that check less than vLLM: its ranges; errors name the parameter."""

import math
from collections.abc import Container

from app.engines.base import EncodeRequest, GenerateRequest
from app.errors import PromptTooLong, RequestError
from app.ids import RunId
from app.messages.job import Sampling
from app.messages.kinds import Task
from app.pools.schema import Pool

_MAX_CHOICES = 16_384
_SEEDS = range(-(2**63), 2**63)
_LOGPROBS = 20  # the most alternatives of a token


def check_new(request: RunId, live: Container[RunId]) -> None:
    """`live`: the requests in the engine. Raises: RequestError."""
    if request in live:
        raise RequestError(f"A request with the id {request} is running already.")


def check_request(request: GenerateRequest, *, vocabulary_size: int, context_len: int) -> None:
    """Raises: RequestError, PromptTooLong."""
    prompt = request.prompt
    if not prompt:
        raise RequestError("The prompt is empty.", param="prompt")
    if len(prompt) >= context_len:
        raise PromptTooLong(
            f"The prompt has {len(prompt)} tokens; with an answer of at least one token the model takes {context_len}."
        )
    _check_tokens("prompt", (min(prompt), max(prompt)), vocabulary_size)
    _check_sampling(request.sampling)
    _check_tokens("stop_token_ids", request.sampling.stop_token_ids, vocabulary_size)
    _check_tokens("logit_bias", request.sampling.logit_bias or (), vocabulary_size)


def check_sound(request: GenerateRequest, task: Task) -> None:
    """Checks that a request to transcribe has exactly one sound. Raises: RequestError.

    vLLM's engine would end on anything else.
    """
    if task == "transcribe" and [one.media.kind for one in request.media] != ["audio"]:
        raise RequestError("A request to transcribe has one sound.")


def check_inputs(request: EncodeRequest, pool: Pool, vocabulary_size: int) -> None:
    """Raises: RequestError, PromptTooLong."""
    if request.task != pool.task:
        raise RequestError(f"This engine's task is {pool.task}, not {request.task}.")
    for tokens in request.inputs:
        if not tokens:
            raise RequestError("An input is empty.", param="input")
        if len(tokens) > pool.context_len:
            raise PromptTooLong(f"An input has {len(tokens)} tokens; the model takes {pool.context_len}.")
        _check_tokens("input", (min(tokens), max(tokens)), vocabulary_size)
    if request.dimensions is not None and request.dimensions not in pool.dimensions:
        raise RequestError(f"dimensions={request.dimensions}: this model has no such vectors.", param="dimensions")


def _check_tokens(param: str, tokens: "tuple[int, ...] | dict[int, float]", vocabulary_size: int) -> None:
    unknown = [token for token in tokens if not 0 <= token < vocabulary_size]
    if unknown:
        raise RequestError(f"{param}: the vocabulary of {vocabulary_size} tokens has no {unknown}.", param=param)


def _check_sampling(sampling: Sampling) -> None:
    s = sampling
    ranges = (
        ("n", s.n, 1 <= s.n <= _MAX_CHOICES, f"from 1 to {_MAX_CHOICES}"),
        ("max_tokens", s.max_tokens, s.max_tokens >= 1, "at least 1"),
        ("min_tokens", s.min_tokens, 0 <= s.min_tokens <= s.max_tokens, "from 0 to max_tokens"),
        ("temperature", s.temperature, 0 <= s.temperature <= 2, "from 0 to 2"),
        ("top_p", s.top_p, 0 < s.top_p <= 1, "above 0 and at most 1"),
        ("top_k", s.top_k, s.top_k >= -1, "at least 1, or 0 for all"),
        ("min_p", s.min_p, 0 <= s.min_p <= 1, "from 0 to 1"),
        ("presence_penalty", s.presence_penalty, -2 <= s.presence_penalty <= 2, "from -2 to 2"),
        ("frequency_penalty", s.frequency_penalty, -2 <= s.frequency_penalty <= 2, "from -2 to 2"),
        ("repetition_penalty", s.repetition_penalty, 0 < s.repetition_penalty < math.inf, "above 0"),
        ("logprobs", s.logprobs, s.logprobs is None or 0 <= s.logprobs <= _LOGPROBS, f"from 0 to {_LOGPROBS}"),
        (
            "prompt_logprobs",
            s.prompt_logprobs,
            s.prompt_logprobs is None or 0 <= s.prompt_logprobs <= _LOGPROBS,
            f"from 0 to {_LOGPROBS}",
        ),
        ("seed", s.seed, s.seed is None or s.seed in _SEEDS, "a 64-bit integer"),
        ("stop", s.stop, all(s.stop), "strings of at least one character"),
    )
    for param, value, fits, requirement in ranges:
        if not fits:
            raise RequestError(f"{param}={value}: must be {requirement}.", param=param)
