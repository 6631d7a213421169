"""Searches the likeliest answers on any engine that tells logprobs: a request of one token for each beam and step.

The engine's prefix cache has what a beam shares with others, and with its own last step.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import count

from msgspec.structs import replace

from app.engines.base import Engine, GenerateRequest, StepOutput
from app.engines.resume import part, text_behind
from app.engines.streams import merged
from app.errors import EngineFailed, RequestError
from app.messages.events import TokenLogprob
from app.messages.job import Job, Sampling
from app.runner.beams import Beam, Beams, FinishedBeam, Rules, advanced
from app.tokenizing.tokenizer import Tokenizer

_LOGPROBS = 20  # alternatives of a token that each engine tells


class Searching:
    """The search for a job's answers. It may be left between two steps, and go on later."""

    def __init__(self, job: Job, tokenizer: Tokenizer, context_len: int, weights: str) -> None:
        """`context_len`: the engine's. `weights`: the version with which it begins. Raises: RequestError."""
        self._sampling, self._tokenizer, self.weights = job.sampling, tokenizer, weights
        self._prompt = job.prompt
        self._rules = Rules.of(job.sampling, tokenizer.ends, context_len - len(job.prompt))
        self._beams, self._numbers = Beams(), count()
        if self._rules.alternatives > _LOGPROBS:
            raise RequestError(
                f"'stop_token_ids': a search with {self.width} beams takes {_LOGPROBS - self.width} tokens that end "
                "an answer, with those of the model.",
                param="stop_token_ids",
            )

    @property
    def width(self) -> int:
        return self._rules.search.width

    @property
    def tokens(self) -> int:
        """Number of tokens that it has computed: of each step, one for each beam."""
        return self.width * self._beams.steps

    @property
    def unshown(self) -> int:
        """Number of these that no answer has."""
        return self.tokens - sum(len(one.beam.tokens) for one in self._best)

    @property
    def _best(self) -> tuple[FinishedBeam, ...]:
        return self._beams.finished[: self._sampling.n]

    async def steps(self, engine: Engine, request: GenerateRequest) -> AsyncGenerator[StepOutput, None]:
        """Yields the engine's first output of each step, to the end. Raises: as Engine.generate."""
        alternatives = max(self._rules.alternatives, self._sampling.logprobs or 0)
        one_token = Sampling(max_tokens=1, temperature=0.0, ignore_eos=True, logprobs=alternatives)
        request = replace(request, sampling=one_token, begun=[], handoff=None)
        while not self._beams.over:
            running, first = self._beams.running, None
            nexts: dict[int, TokenLogprob] = {}
            streams = [_numbered(engine, self._of_beam(request, beam), i) for i, beam in enumerate(running)]
            async with aclosing(merged(*streams)) as outputs:
                async for o in outputs:
                    if o.finish == "abort":
                        raise EngineFailed("The engine aborted the request.")
                    if o.logprobs:
                        first = first or o
                        nexts[o.index] = o.logprobs[0]
            if first is None or len(nexts) < len(running):
                raise EngineFailed("The engine told no logprobs of a token.")
            self._beams = advanced(self._beams, [nexts[i] for i in range(len(running))], self._rules)
            yield first

    def answers(self) -> list[StepOutput]:
        """The best answers, each whole. Raises: EngineFailed if there are fewer than were asked for."""
        if len(self._best) < self._sampling.n:
            raise EngineFailed("The engine told of too few tokens for a search.")
        return [self._answer(i, one) for i, one in enumerate(self._best)]

    def _of_beam(self, request: GenerateRequest, beam: Beam) -> GenerateRequest:
        return replace(
            request,
            id=part(request.id, next(self._numbers)),
            prompt=[*request.prompt, *beam.tokens],
            written=[*request.written, *beam.tokens] if request.written else [],
            trace_headers=None if beam.tokens else request.trace_headers,  # one span of the engine's says enough
        )

    def _answer(self, index: int, one: FinishedBeam) -> StepOutput:
        s, tokens, last = self._sampling, one.beam.tokens, one.beam.tokens[-1]
        visible = tokens[:-1] if one.finish == "stop" and not s.include_stop else tokens
        own_end = last == self._tokenizer.eos_id and not s.ignore_eos
        most = s.logprobs
        return StepOutput(
            text_behind(self._tokenizer.raw, self._prompt, visible, special=s.special_tokens),
            tokens,
            index,
            finish=one.finish,
            stop=None if one.finish != "stop" or own_end else last,
            logprobs=None if most is None else [_shortened(lp, most) for lp in one.beam.logprobs],
        )


def _shortened(logprob: TokenLogprob, most: int) -> TokenLogprob:
    return replace(logprob, top=logprob.top[:most], rank=_rank(logprob))


def _rank(logprob: TokenLogprob) -> int:
    return next(i for i, (_, token, _) in enumerate(logprob.top, 1) if token == logprob.token_id)


async def _numbered(engine: Engine, request: GenerateRequest, number: int) -> AsyncGenerator[StepOutput, None]:
    async with aclosing(engine.generate(request)) as steps:
        async for step in steps:
            yield replace(step, index=number)
