"""Our requests as SGLang's, SGLang's outcomes as ours."""

import json
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from app.engines.sglang_plugin import GRAMMAR
from app.errors import EngineFailed, RequestError, XylemError
from app.messages.events import TokenLogprob
from app.messages.job import Grammar, Sampling
from app.tokenizing.token_names import TokenNames

_BAD_REQUEST = range(400, 500)


def sampling_params(s: Sampling, start: int) -> dict[str, Any]:
    """Parameters of one choice, of which `start` tokens are out. Stop strings are not among them: text is made here."""
    return {
        "max_new_tokens": s.max_tokens,
        "min_new_tokens": s.min_tokens,
        "temperature": s.temperature,
        "top_p": s.top_p,
        "top_k": s.top_k or -1,
        "min_p": s.min_p,
        "presence_penalty": s.presence_penalty,
        "frequency_penalty": s.frequency_penalty,
        "repetition_penalty": s.repetition_penalty,
        "sampling_seed": s.seed,
        "stop_token_ids": list(s.stop_token_ids),
        "ignore_eos": s.ignore_eos,
        "logit_bias": {str(token): bias for token, bias in s.logit_bias.items()} if s.logit_bias else None,
        "custom_params": {GRAMMAR: start} if start and s.grammar is not None else None,
        **({} if s.grammar is None else _grammar(s.grammar)),
    }


def logprob_arguments(s: Sampling) -> dict[str, Any]:
    """Arguments of `GenerateReqInput` for logprobs. Those of the prompt keep its KV from coming out of the cache."""
    if s.logprobs is None and s.prompt_logprobs is None:
        return {}
    return {
        "return_logprob": True,
        "top_logprobs_num": max(s.logprobs or 0, s.prompt_logprobs or 0),
        "logprob_start_len": -1 if s.prompt_logprobs is None else 0,
    }


def token_logprobs(meta: Mapping[str, Any], side: str, top: int, names: TokenNames) -> list[TokenLogprob | None]:
    """Logprobs of `side` input or output, with `top` alternatives each; None for a prompt's first token.

    `names`: of those tokens.
    """
    entries = meta[f"{side}_token_logprobs"]
    alternatives = (meta.get(f"{side}_top_logprobs") if top else None) or [None] * len(entries)
    logprobs: list[TokenLogprob | None] = []
    for (logprob, token, _), best in zip(entries, alternatives, strict=True):
        likeliest = [(names.of(other), other, value) for value, other, _ in (best or ())[:top]]
        name = names.add(token)
        logprobs.append(None if logprob is None else TokenLogprob(name, token, logprob, likeliest))
    return logprobs


def drafted(meta: Mapping[str, Any]) -> tuple[int, int, list[int]]:
    """Counts for an answer: how often tokens were drafted, how many, and how many were accepted at each position."""
    by_length = meta.get("spec_correct_drafts_histogram") or [0]  # how often so many of a draft were accepted
    accepted_counts = list(accumulate(reversed(by_length[1:])))[::-1]
    return meta.get("spec_verify_ct", 0), meta.get("spec_num_proposed_drafts", 0), accepted_counts


def refusal(finish: Mapping[str, Any]) -> XylemError | None:
    """The error that an abort by SGLang itself means; None: it was asked for."""
    status = finish.get("status_code")
    if status is None:
        return None
    kind = RequestError if status in _BAD_REQUEST else EngineFailed
    return kind(str(finish.get("message") or "SGLang gave the request up."))


def translate(exc: Exception) -> XylemError:
    match exc:
        case XylemError():
            return exc
        case ValueError() | TypeError():
            return RequestError(str(exc))
        case _:
            return EngineFailed(f"SGLang failed: {exc!r}")


def _grammar(grammar: Grammar) -> dict[str, str]:
    match grammar.kind:
        case "json":
            return {"json_schema": grammar.text}
        case "regex":
            return {"regex": grammar.text}
        case "tag":
            return {"structural_tag": grammar.text}
        case "choice":
            texts = json.loads(grammar.text)
            return {"ebnf": "root ::= " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)}
    return {"ebnf": grammar.text}
