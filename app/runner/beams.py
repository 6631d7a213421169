"""One step of a beam search. Pure: `beam_search.py` asks the engine.

It is transformers' search: of all continuations of the running beams, those that end count only among the first
`width`, and the likeliest others go on; a score is the sum of the logprobs over the answer's length, with the token
that ends it, to the power of the length penalty.
"""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from app.messages.events import TokenLogprob
from app.messages.job import BeamSearch, Sampling
from app.messages.kinds import FinishReason


class Beam(Struct, frozen=True):
    """The beginning of an answer."""

    tokens: list[int] = []
    logprob: float = 0.0  # of all its tokens together
    logprobs: list[TokenLogprob] = []  # of each, with all alternatives


class FinishedBeam(Struct, frozen=True):
    beam: Beam
    score: float
    finish: FinishReason


class Beams(Struct, frozen=True):
    """A search so far."""

    running: tuple[Beam, ...] = (Beam(),)  # the likeliest first
    finished: tuple[FinishedBeam, ...] = ()  # the best first, at most as many as the search is wide
    steps: int = 0
    over: bool = False


class Rules(Struct, frozen=True):
    search: BeamSearch
    max_tokens: int
    min_tokens: int
    ends: frozenset[int]  # tokens that end an answer

    @classmethod
    def of(cls, sampling: Sampling, ends: frozenset[int], room: int) -> "Rules":
        """`ends`: by the model. `room`: tokens that fit behind the prompt."""
        assert sampling.beams is not None
        own = frozenset() if sampling.ignore_eos else ends
        return cls(
            sampling.beams, min(sampling.max_tokens, room), sampling.min_tokens, own | {*sampling.stop_token_ids}
        )

    @property
    def alternatives(self) -> int:
        """Number of each beam's next tokens that a step looks at: all may be tokens that end it, but `width`."""
        return self.search.width + len(self.ends)

    def score(self, logprob: float, length: int) -> float:
        return float(logprob / length**self.search.length_penalty)


class _Continuation(NamedTuple):
    logprob: float  # of all its tokens together
    beam: int  # its number among the running ones
    name: str
    token: int


def advanced(beams: Beams, nexts: Sequence[TokenLogprob], rules: Rules) -> Beams:
    """The search after one more token. `nexts`: for each running beam, its next token's likeliest values."""
    length, width = beams.steps + 1, rules.search.width
    continuations = sorted(_continuations(beams, nexts, rules), key=lambda one: -one.logprob)
    last = length >= rules.max_tokens
    ends = [
        FinishedBeam(
            _grown(beams, nexts, one),
            rules.score(one.logprob, length),
            "stop" if one.token in rules.ends else "length",
        )
        for one in continuations[:width]
        if last or one.token in rules.ends
    ]
    best = sorted([*beams.finished, *ends], key=lambda one: -one.score)[:width]
    rest = [] if last else [one for one in continuations if one.token not in rules.ends][:width]
    after = Beams(tuple(_grown(beams, nexts, one) for one in rest), tuple(best), length)
    return replace(after, over=not rest or not _may_improve(after, rules))


def _continuations(beams: Beams, nexts: Sequence[TokenLogprob], rules: Rules) -> list[_Continuation]:
    """The running beams, each with each of its next tokens. Before `min_tokens` none ends."""
    early = beams.steps < rules.min_tokens
    return [
        _Continuation(beam.logprob + logprob, number, name, token)
        for number, (beam, after) in enumerate(zip(beams.running, nexts, strict=True))
        for name, token, logprob in after.top[: rules.alternatives]
        if logprob > -inf and not (early and token in rules.ends)
    ]


def _grown(beams: Beams, nexts: Sequence[TokenLogprob], one: _Continuation) -> Beam:
    beam, top = beams.running[one.beam], nexts[one.beam].top
    logprob = TokenLogprob(one.name, one.token, one.logprob - beam.logprob, top)
    return Beam([*beam.tokens, one.token], one.logprob, [*beam.logprobs, logprob])


def _may_improve(beams: Beams, rules: Rules) -> bool:
    """Whether a running beam may become better than the worst of as many finished ones as the search is wide."""
    search = rules.search
    if len(beams.finished) < search.width:
        return True
    if search.early_stopping is True or search.width == 1:  # of one beam, the first end is the likeliest
        return False
    longest = search.early_stopping == "never" and search.length_penalty > 0
    best_score = rules.score(beams.running[0].logprob, rules.max_tokens if longest else beams.steps)
    return best_score > beams.finished[-1].score
