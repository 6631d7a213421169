"""Stop strings end an answer where its content has them: not within reasoning, and not within a tool call.

Engines know an answer's text only. So they are asked without stop strings, which are looked for here.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from msgspec.structs import replace

from app.dialects.content_spans import SpanParser
from app.dialects.of_model import dialect_of
from app.dialects.parts import Content
from app.engines.base import StepOutput
from app.engines.resume import text_behind
from app.engines.stops import StopScanner
from app.messages.job import ContentRules, Job, PartialOutput, Sampling
from app.tokenizing.tokenizer import Tokenizer


class ContentStops:
    """The output of one choice, up to a stop string."""

    def __init__(self, parser: SpanParser, sampling: Sampling, text: str = "", tokens: int = 0) -> None:
        """`text`: the text that is out; `tokens`: so many of them."""
        self._parser, self._sampling, self._tokens = parser, sampling, tokens
        self._scanner = StopScanner(sampling.stop, include=False)
        self._held: list[int] = []  # places in the text of the characters that may begin a stop string
        self._text, self._base = text, 0  # what may still be needed of the text, and where that begins
        self._sent = len(text)  # so many characters are out
        parser.feed(text)
        parser.spans()  # no stop string is in there: it would have ended the answer

    def step(self, o: StepOutput) -> StepOutput:
        """The part of it that may go out; with a `finish` if it has a stop string, and then nothing may follow."""
        self._tokens += len(o.tokens)
        self._text += o.text
        parts = self._parser.feed(o.text)
        if o.finish is not None:
            parts = [*parts, *self._parser.close()]
        for begin, end in self._parser.spans():
            if cut := self._look(begin, end):
                return replace(o, text=self._up_to(cut[0]), finish="stop", stop=cut[1])
        if parts and type(parts[-1]) is not Content:
            self._end_section()
        whole = self._base + len(self._text)
        return replace(o, text=self._up_to(whole if o.finish is not None else min([self._parser.settled, *self._held])))

    def _look(self, begin: int, end: int) -> tuple[int, str] | None:
        """The place at which to cut the text, and the stop string, if it ends in this span of content."""
        if begin < self._base:  # it is what was left out, and is out
            return None
        if self._held and self._held[-1] + 1 != begin:
            self._end_section()
        places = [*self._held, *range(begin, end)]
        text = self._text[begin - self._base : end - self._base]
        free, stop = self._scanner.push(text, check=self._tokens > self._sampling.min_tokens)
        self._held = places[len(free) :]
        if stop is None:
            return None
        return (self._held[len(stop) - 1] + 1 if self._sampling.include_stop else self._held[0]), stop

    def _end_section(self) -> None:
        """A stop string doesn't go on behind reasoning or a call."""
        self._scanner, self._held = StopScanner(self._sampling.stop, include=False), []

    def _up_to(self, end: int) -> str:
        """The text from what is out up to there."""
        begin, self._sent = self._sent, max(self._sent, end)
        text = self._text[begin - self._base : self._sent - self._base]
        new_base = min(self._sent, self._parser.settled)
        self._text, self._base = self._text[new_base - self._base :], new_base
        return text


class StopFinder:
    """Finds the stop strings of jobs with `Sampling.content`; of others, the engine does."""

    def __init__(self, tokenizer: Callable[[], Tokenizer] | None) -> None:
        """`tokenizer`: gives the model's; None: there are no such jobs."""
        self._tokenizer = tokenizer

    def steps(self, job: Job, steps: AsyncGenerator[StepOutput, None]) -> AsyncGenerator[StepOutput, None]:
        """An engine's steps, up to a stop string in each choice. Raises: as Engine.generate."""
        rules = job.sampling.content
        return steps if rules is None else _stopped(steps, job, self._choices(job, rules))

    def first(self, job: Job, o: StepOutput | None) -> StepOutput | None:
        """The first output of an answer that another engine goes on with."""
        rules = job.sampling.content
        return o if o is None or rules is None else self._choices(job, rules)[0].step(o)

    def _choices(self, job: Job, rules: ContentRules) -> list[ContentStops]:
        assert self._tokenizer is not None, "a worker that generates has one"
        tokenizer, s = self._tokenizer(), job.sampling
        dialect, tools = dialect_of(rules.dialect, rules.reasoning, tokenizer), dict.fromkeys(rules.tools)
        choices = []
        for output in job.begun or [PartialOutput([])] * s.n:
            parser = SpanParser(dialect, tools, begun=rules.begun, over=rules.over)
            text = text_behind(tokenizer.raw, job.prompt, output.tokens, special=s.special_tokens)
            choices.append(ContentStops(parser, s, text[: output.text_len], len(output.tokens)))
        return choices


async def _stopped(
    steps: AsyncGenerator[StepOutput, None], job: Job, choices: Sequence[ContentStops]
) -> AsyncGenerator[StepOutput, None]:
    """Yields the steps, without what an engine goes on with, for the sake of others, in a choice that is over."""
    over = {index for index, output in enumerate(job.begun) if output.finished}
    async with aclosing(steps):
        async for step in steps:
            if step.index in over:
                continue
            o = step if step.finish == "abort" else choices[step.index].step(step)
            if o.finish is not None:
                over.add(o.index)
            yield o
            if len(over) == len(choices):
                return
