"""Simulated logits, and sampling from them: cheap, deterministic, and the same for the same context.

At every position the hash of all tokens before it picks TOP neighbouring words of the wheel, a list of words; their
logits fall by a fixed step, and every other token is far below. So a continuation depends on the context alone, as
with a real model: neither batching nor speed changes it, and a request resumed elsewhere continues unchanged.
Sampling parameters act on these logits as on real ones.
"""

import math
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from xxhash import xxh3_64, xxh3_64_intdigest

from app.engines.mock.grammar_state import GrammarState
from app.engines.mock.vocabulary import TOP, Vocabulary
from app.messages.events import TokenLogprob
from app.messages.job import Sampling
from app.tokenizing.token_names import TokenNames

_LOGITS = [-0.5 * rank for rank in range(TOP)]
_FLOOR = -20.0  # the logit of every other token
_LOG_MASS = math.log(sum(map(math.exp, _LOGITS)))
_SCALE = 2.0**-64
_NONE: frozenset[int] = frozenset()
_CLOSES, _STAYS = 4.0, -3.0  # logits of closing tokens under a grammar: when it is time to close, and otherwise
_TRIES = 64  # whitespace tokens that are skipped if the grammar allows others


class Sampler:
    """The tokens of one choice, one after the other."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        prompt: Sequence[int],
        sampling: Sampling,
        seed: int,
        weights: str = "",
        adapter: bytes = b"",
    ) -> None:
        """`weights`: the version of the model's; `adapter`: a digest of the adapter's, if there is one."""
        self._vocabulary = vocabulary
        self.names = vocabulary.names()  # of the answer's tokens
        self._sampling = sampling
        self._adapter = adapter
        self.use(weights, prompt)
        self._seed = xxh3_64_intdigest(seed.to_bytes(16, "little", signed=True))
        self._levels = _cumulative(_LOGITS, sampling)
        self._prompt = frozenset(prompt) if sampling.repetition_penalty != 1.0 else frozenset()
        self._counts: Counter[int] = Counter()
        self._penalised = bool(
            sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1.0
        )
        self._shaped = self._penalised or bool(sampling.logit_bias)
        self._place = 0  # the hash of the context: the position on the wheel
        self._filled = True  # the last token is more than whitespace
        self._due: int | None = None  # the token that is the likeliest here, instead of the wheel's

    def use(self, weights: str, tokens: Sequence[int]) -> None:
        """The next token depends on `weights`, a version, and on `tokens`, all that there are so far."""
        self._context = xxh3_64(self._adapter + weights.encode() + array("I", tokens).tobytes())

    def choose(
        self,
        exclusions: frozenset[int] = _NONE,
        due: int | None = None,
        grammar: GrammarState | None = None,
        *,
        ends: bool = False,
    ) -> int:
        """The next token: `due` if given, else a sampled one, none of `exclusions`. `logprob` refers to this position.

        `grammar`: only tokens that it allows; then `ends` closes open structures as soon as possible.
        """
        self._place = place = self._context.intdigest()
        self._due = due = due if grammar is None or due is None or grammar.allows(due) else None
        if due is not None:
            return due
        if grammar is not None:
            return self._pick(place, exclusions, self._grammar_logits(place, grammar, ends=ends))
        if self._shaped or exclusions:
            return self._pick(place, exclusions, self._wheel_logits(place))
        rank = bisect_right(self._levels, self._draw(place)) if len(self._levels) > 1 else 0
        return self._vocabulary.wheel[place % self._vocabulary.words + rank]

    def append(self, token: int) -> None:
        """`token` came next, whether chosen here or not."""
        self._context.update(token.to_bytes(4, "little"))
        self._filled = bool(self._vocabulary.texts[token].strip())
        if self._penalised:
            self._counts[token] += 1

    def logprob(self, token: int, top: int) -> TokenLogprob:
        """The logprob of `token` at the last `choose`, before sampling parameters, with `top` alternatives."""
        return _logprob(self._vocabulary, self._place, token, top, self.names, due=self._due)

    def _draw(self, place: int) -> float:
        """A number in [0, 1) that depends on the seed and the context."""
        bits = ((place ^ self._seed) * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        return bits * _SCALE

    def _wheel_logits(self, place: int, grammar: GrammarState | None = None) -> dict[int, float]:
        start = place % self._vocabulary.words
        logits = dict(zip(self._vocabulary.wheel[start : start + TOP], _LOGITS, strict=True))
        for token, bias in (self._sampling.logit_bias or {}).items():
            logits[token] = logits.get(token, _FLOOR) + bias
        return logits if grammar is None else {token: logit for token, logit in logits.items() if grammar.allows(token)}

    def _grammar_logits(self, place: int, grammar: GrammarState, *, ends: bool) -> dict[int, float]:
        """Logits like a model's under a grammar: words where allowed, and a closing token after a few of them."""
        logits = self._wheel_logits(place, grammar)
        vocabulary, some = self._vocabulary, grammar.after(place)
        for _ in range(_TRIES):
            if vocabulary.texts[some].strip():
                break
            some = grammar.after(some + 1)
        logits.setdefault(some, 0.0 if not logits else _FLOOR)
        # Whitespace ends a number at the top level; after whitespace, more of it would follow for ever.
        closings = vocabulary.closing if self._filled else vocabulary.closing[:-1]
        closing = next((token for token in closings if grammar.allows(token)), None)
        if closing is not None:
            turn = ends or place >> 32 & 3 == 0
            logits[closing] = _CLOSES if turn else max(logits.get(closing, _FLOOR), _STAYS)
        return logits

    def _pick(self, place: int, exclusions: frozenset[int], logits: dict[int, float]) -> int:
        exclusions = exclusions if logits.keys() - exclusions else _NONE  # a grammar may allow nothing else
        candidates = (
            (token, self._penalise(token, logit)) for token, logit in logits.items() if token not in exclusions
        )
        ranking = sorted(candidates, key=lambda pair: -pair[1])
        levels = _cumulative([logit for _, logit in ranking], self._sampling)
        return ranking[bisect_right(levels, self._draw(place)) if len(levels) > 1 else 0][0]

    def _penalise(self, token: int, logit: float) -> float:
        count = self._counts[token] if self._penalised else 0
        if count or token in self._prompt:
            penalty = self._sampling.repetition_penalty
            logit = logit / penalty if logit > 0 else logit * penalty
        if count:
            logit -= self._sampling.presence_penalty + count * self._sampling.frequency_penalty
        return logit


def prompt_logprobs(
    vocabulary: Vocabulary, prompt: Sequence[int], top: int, weights: str = "", adapter: bytes = b""
) -> list[TokenLogprob | None]:
    """One per prompt token; None for the first, which nothing predicts."""
    context = xxh3_64(adapter + weights.encode())
    logprobs: list[TokenLogprob | None] = [None]
    names = vocabulary.names()
    names.add(prompt[0])
    for before, token in pairwise(prompt):
        context.update(before.to_bytes(4, "little"))
        logprobs.append(_logprob(vocabulary, context.intdigest(), token, top, names))
    return logprobs


def _logprob(
    vocabulary: Vocabulary, place: int, token: int, top: int, names: TokenNames, due: int | None = None
) -> TokenLogprob:
    start = place % vocabulary.words
    likely = vocabulary.wheel[start : start + TOP]
    if due is not None:
        likely = [due, *likely[:-1]]
    rank = likely.index(token) if token in likely else TOP  # all others are as unlikely
    logit = _LOGITS[rank] if rank < TOP else _FLOOR
    alternatives = [(names.of(other), other, _LOGITS[place] - _LOG_MASS) for place, other in enumerate(likely[:top])]
    return TokenLogprob(names.add(token), token, logit - _LOG_MASS, alternatives, rank=rank + 1)


def _cumulative(logits: list[float], sampling: Sampling) -> list[float]:
    """Upper ends of the sorted logits' shares of [0, 1); tokens cut off by top_k, top_p or min_p get none."""
    if sampling.temperature == 0:
        return [1.0]
    weights = [math.exp((logit - logits[0]) / sampling.temperature) for logit in logits]
    if sampling.top_k > 0:
        weights = weights[: sampling.top_k]
    weights = [weight for weight in weights if weight >= sampling.min_p]
    mass = sum(weights)
    levels, total = [], 0.0
    for weight in weights:
        total += weight
        levels.append(total / mass)
        if total >= sampling.top_p * mass:
            break
    fractions = [level / levels[-1] for level in levels]
    fractions[-1] = 1.0
    return fractions
