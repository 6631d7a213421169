"""One answer being generated, and the stream of a request's outputs."""

import asyncio
import secrets
from collections.abc import Callable, Sequence

from app.engines.base import GenerateRequest, MediaInput, StepOutput
from app.engines.mock.blocks import BlockTable
from app.engines.mock.eyes import seen_picture
from app.engines.mock.grammar_state import UNFOLLOWED, GrammarState
from app.engines.mock.sampler import Sampler, prompt_logprobs
from app.engines.mock.tiers import Load
from app.engines.mock.vocabulary import Vocabulary
from app.engines.resume import ContinuedText
from app.engines.stops import StopScanner
from app.engines.token_text import TokenText
from app.errors import RequestError, XylemError
from app.messages.events import GRAMMAR, TokenLogprob
from app.messages.handoff import Handoff
from app.messages.job import KvTransfer, PartialOutput
from app.messages.kinds import FinishReason

_BAN = -100.0  # a logit bias at which EOS never comes
_NONE: frozenset[int] = frozenset()


class Stream:
    """One request's output queue. The engine's step puts, `take` gets; both on the same event loop."""

    __slots__ = ("_error", "_outputs", "_waiter", "cached_tokens", "choices", "open_choices", "pulled")

    def __init__(self) -> None:
        self.choices: list[MockChoice] = []
        self.open_choices = 0  # not yet finished
        self.cached_tokens: int | None = None  # None until the first choice is admitted
        self.pulled: KvTransfer | None = None  # for the first output
        self._outputs: list[StepOutput] = []
        self._waiter: asyncio.Future[None] | None = None
        self._error: XylemError | None = None

    def put(self, output: StepOutput) -> None:
        self._outputs.append(output)
        if output.finish is not None:
            self.open_choices -= 1
        self._wake()

    def fail(self, error: XylemError) -> None:
        self._error = error
        self._wake()

    async def take(self) -> list[StepOutput]:
        """All outputs since the last call, at least one. Raises: the error given to `fail`."""
        if not self._outputs:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            return await self.take()
        outputs, self._outputs = self._outputs, []
        return outputs

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)


def seen(media: Sequence[MediaInput]) -> bytes:
    """A digest of all samples: answers depend on what is in a picture, and not on what it is said to be."""
    return b"".join(f"{one.media.offset}{one.media.shape}".encode() + seen_picture(one) for one in media)


class MockChoice:
    """One of the n answers to a request: the scheduler's unit, extended by the sampler."""

    def __init__(
        self,
        request: GenerateRequest,
        stream: Stream,
        vocabulary: Vocabulary,
        *,
        index: int,
        arrival: int,
        context_len: int,
        answer_tokens: int,
        lends: bool = False,
        script: Sequence[int] = (),
        grammar: GrammarState | None = None,
        adapter: bytes = b"",
        weights: str = "",
    ) -> None:
        """`lends`: it ends when its prompt is computed, and another engine gets its KV. `script`: its tokens.

        `grammar`: its state after the output so far. `adapter`: the digest of its weights.
        """
        sampling = request.sampling
        self.request = request
        self.stream = stream
        self.index = index
        self.rank = (request.priority, arrival, index)  # lowest first
        self.tokens = list(request.prompt)  # prompt and answer so far
        self.prompt_len = len(request.prompt)
        self.context_len = context_len
        self.computed = 0  # leading tokens whose KV is there
        self.table = self.new_table()
        self.finished = False
        self.lends = lends
        # Where the prompt's KV comes from, until it has arrived. The other choices find it in the cache.
        self.source: Handoff | None = request.handoff if index == 0 and not lends else None
        self.load: Load | None = None  # what comes from tiers, until it has arrived
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed + index
        self._vocabulary = vocabulary
        adapter += seen(request.media)
        self._adapter, self._weights = adapter, weights
        self._sampler = Sampler(vocabulary, request.prompt, sampling, seed, weights, adapter=adapter)
        self._scanner = StopScanner(sampling.stop, include=sampling.include_stop) if sampling.stop else None
        self._script = script
        self._answer_tokens = len(script) or max(answer_tokens, sampling.min_tokens)
        eos = vocabulary.eos_id
        bias = sampling.logit_bias or {}
        self._can_end = not sampling.ignore_eos and eos is not None and bias.get(eos, 0.0) > _BAN
        # Only stop_token_ids or a bias can make the sampler choose one of these before min_tokens.
        ends = {*sampling.stop_token_ids, *(() if eos is None or sampling.ignore_eos else (eos,))}
        self._banned = frozenset(ends) if sampling.stop_token_ids or bias else _NONE
        self.grammar = grammar
        has_fixed_texts = not (bias or script or sampling.special_tokens or grammar)
        self._decode: Callable[[int], str] = (
            vocabulary.texts.__getitem__ if has_fixed_texts else self._any_text(request.prompt)
        )
        self._behind = self._resume(request.begun[index]) if request.begun else ContinuedText()

    @property
    def reuse(self) -> bool:
        """Whether cached KV may be used: logprobs of the prompt need every position computed."""
        return self.request.sampling.prompt_logprobs is None

    def new_table(self) -> BlockTable:
        """A table of this choice without a block."""
        return BlockTable(self.request.cache_salt, self.request.adapter, [one.media for one in self.request.media])

    def use(self, weights: str) -> None:
        """Takes tokens from this version of the weights from now on."""
        self._weights = weights
        self._sampler.use(weights, self.tokens)

    def advance(self) -> StepOutput:
        """Sample one token. Sets `finished` when it is the last one."""
        sampling = self.request.sampling
        sampler = self._sampler
        answer_len = len(self.tokens) - self.prompt_len
        early = answer_len < sampling.min_tokens
        due = self._due(answer_len)
        grammar = None if self.grammar is None or self.grammar.over else self.grammar
        token = sampler.choose(self._banned if early else _NONE, due, grammar, ends=answer_len >= self._answer_tokens)
        if grammar is not None and not grammar.accept([token]):
            raise RequestError(UNFOLLOWED, param=GRAMMAR)  # which llguidance notices with a token that it has allowed
        logprobs = None if sampling.logprobs is None else [sampler.logprob(token, sampling.logprobs)]
        sampler.append(token)
        self.tokens.append(token)
        text, finish, stop = self._read(token, answer_len + 1)
        self.finished = finish is not None
        prompt_logprobs_ = self._prompt_logprobs() if answer_len == 0 and not self.reuse else None
        cached_tokens = self.stream.cached_tokens or 0
        transfer, self.stream.pulled = self.stream.pulled, None
        text = self._behind(text)
        return StepOutput(
            text,
            [token],
            index=self.index,
            finish=finish,
            stop=stop,
            logprobs=logprobs,
            cached_tokens=cached_tokens,
            prompt_logprobs=prompt_logprobs_,
            pulled=transfer,
        )

    def _due(self, count: int) -> int | None:
        """The token that has to follow after `count` tokens: of the script, or EOS; else None."""
        if count < len(self._script):
            return self._script[count]
        return self._vocabulary.eos_id if count >= self._answer_tokens and self._can_end else None

    def prefilled(self) -> StepOutput:
        """The output of a choice that lends, once its prompt is computed.

        It has the first token if this engine makes it, else nothing.
        """
        if self.request.sampling.n == 1 and self.request.handoff is None:
            return self.advance()
        return StepOutput("", [], cached_tokens=self.stream.cached_tokens or 0)

    def abort(self) -> StepOutput:
        """The last output of a choice that won't be finished."""
        self.finished = True
        text = self._behind(self._scanner.flush() if self._scanner else "")
        return StepOutput(text, [], self.index, "abort", cached_tokens=self.stream.cached_tokens or 0)

    def _read(self, token: int, count: int) -> tuple[str, FinishReason | None, int | str | None]:
        """The text to send; the finish reason and the stop, if token number `count` ends the answer."""
        sampling = self.request.sampling
        stop: int | str | None = None
        finish: FinishReason | None = None
        if token == self._vocabulary.eos_id and not sampling.ignore_eos:
            finish = "stop"
        elif token in sampling.stop_token_ids and count > sampling.min_tokens:
            finish, stop = "stop", token
        elif count >= sampling.max_tokens or len(self.tokens) >= self.context_len:
            finish = "length"
        text = "" if finish == "stop" and not sampling.include_stop else self._decode(token)
        if self._scanner is None:
            return text, finish, stop
        text, stop_string = self._scanner.push(text, check=count > sampling.min_tokens)
        if stop_string is not None:
            return text, "stop", stop_string
        return (text + self._scanner.flush() if finish else text), finish, stop

    def _resume(self, beginning: PartialOutput) -> ContinuedText:
        """Replay the output so far, as if it had been made here."""
        out = ""
        for answer_len, token in enumerate(beginning.tokens, 1):
            self._sampler.append(token)
            if self.request.sampling.logprobs is not None:
                self._sampler.names.add(token)
            self.tokens.append(token)
            text = self._decode(token)
            if self._scanner is not None:
                text, _ = self._scanner.push(text, check=answer_len > self.request.sampling.min_tokens)
            out += text
        return ContinuedText(out, beginning.text_len)

    def _prompt_logprobs(self) -> list[TokenLogprob | None]:
        top = self.request.sampling.prompt_logprobs or 0
        return prompt_logprobs(self._vocabulary, self.request.prompt, top, self._weights, self._adapter)

    def _any_text(self, prompt: list[int]) -> Callable[[int], str]:
        """A decoder for any tokens, also parts of a character: a bias or a script can bring them."""
        return TokenText(self._vocabulary.tokenizer.raw, prompt, special=self.request.sampling.special_tokens)
