"""An answer in the shape of a completions API: whole, or as server-sent events, and the error that ends these.

`delta` is the hot path of the API: one call per token. All of a chunk's JSON but the text is built once per choice.
Subclasses override it to change the generated text (a prompt in front of it, a parser's parts).
"""

from typing import ClassVar, Generic, TypeVar

import orjson

from app.dispatch.generation_base import GenerationBase
from app.messages.deltas import merge
from app.messages.events import Delta
from app.openai import envelope
from app.openai.answer_types import ChatAnswer, ChatLogprobs, TextAnswer, TextLogprobs, Usage
from app.openai.schemas import ChatRequest, CompletionRequest

DONE = b"data: [DONE]\n\n"
A = TypeVar("A", ChatAnswer, TextAnswer)
PLAIN_END = b'null,"finish_reason":null}]'


class CompletionWriter(Generic[A]):
    """Writes one answer."""

    CHUNK: ClassVar[bytes]  # the `object` of a chunk
    BEFORE_TEXT: ClassVar[bytes]  # JSON in a chunk's choice, around its text
    AFTER_TEXT: ClassVar[bytes]

    def __init__(self, call: GenerationBase, body: ChatRequest | CompletionRequest) -> None:
        self._call, options = call, body.stream_options
        self._usage_at_end = bool(options and options.include_usage)
        self._usage_always = bool(options and options.continuous_usage_stats)
        self._token_ids, self._as_ids = bool(body.return_token_ids), bool(body.return_tokens_as_token_ids)
        self._only_text = not (self._usage_always or self._token_ids)  # most chunks have nothing but text
        self._weights = ""
        self._begin("")
        # OpenAI sends `usage: null` with every chunk when the last one will carry it.
        self._end = b',"usage":null}\n\n' if self._usage_at_end else b"}\n\n"
        self._plain_tail = self.AFTER_TEXT + PLAIN_END + self._end

    def logprobs(self, choice: int, d: Delta) -> ChatLogprobs | TextLogprobs | None:
        """The logprobs of a delta, or of a whole choice."""
        raise NotImplementedError

    def _begin(self, weights: str) -> None:
        """Sets how chunks begin from now on. `weights`: the version of the weights that make them."""
        call, tier = self._call, self._call.plan.tier
        self._weights = weights
        self._start = b'data: {"id":"%b","object":"%b","created":%d,"model":%b,%b%b' % (
            call.id.encode(),
            self.CHUNK,
            call.created,
            orjson.dumps(call.model.name),
            b'"service_tier":"%b",' % tier.encode() if tier else b"",
            b'"system_fingerprint":"%b",' % weights.encode() if weights else b"",
        )
        self._heads: dict[int, bytes] = {}

    async def made(self) -> A:
        """The whole answer, without the envelope and the usage. Raises: the error that ended it."""
        return await self._call.made(self._made, await self._call.whole())

    def _made(self, deltas: list[tuple[int, Delta]]) -> A:
        return self.answer(sorted(merge(deltas)))

    def answer(self, choices: list[tuple[int, Delta]]) -> A:
        """The same, of these choices."""
        raise NotImplementedError

    def usage(self) -> Usage:
        """The tokens so far."""
        return envelope.usage(self._call)

    async def settle(self) -> None:
        """Slow work for the last events."""

    def opening(self, _choices: int) -> bytes:
        """The events before the first delta."""
        return b""

    def delta(self, choice: int, d: Delta) -> bytes:
        """One event; none when there is nothing to send (a token that ends no character yet)."""
        if d.weights != self._weights:
            self._begin(d.weights)
        if d.finish is None and d.logprobs is None and self._only_text:
            if not d.text:
                return b""
            head = self._heads.get(choice) or self._head(choice)
            return b"%b%b%b" % (head, orjson.dumps(d.text), self._plain_tail)
        return b"%b%b%b" % (self._head(choice), orjson.dumps(d.text), self.tail(choice, d, d.finish))

    def tail(self, choice: int, d: Delta, finish: str | None) -> bytes:
        """The end of a chunk that has more than text."""
        return b"".join(
            (
                self.AFTER_TEXT,
                orjson.dumps(self.logprobs(choice, d)),
                b',"finish_reason":%b' % orjson.dumps(finish),
                b',"stop_reason":%b' % orjson.dumps(d.stop) if finish else b"",
                self.extra_fields(choice, d),
                b"}]",
                self.end(),
            )
        )

    def extra_fields(self, _choice: int, d: Delta) -> bytes:
        """Fields of a chunk's choice that the client asked for."""
        return b',"token_ids":%b' % orjson.dumps(d.tokens) if self._token_ids else b""

    def last(self) -> bytes:
        if not self._usage_at_end:
            return DONE
        return b'%b"choices":[],"usage":%b}\n\n%b' % (self._start, orjson.dumps(self.usage()), DONE)

    def end(self) -> bytes:
        """The end of each chunk."""
        return b',"usage":%b}\n\n' % orjson.dumps(self.usage()) if self._usage_always else self._end

    def _head(self, choice: int) -> bytes:
        head = self._heads[choice] = self._start + b'"choices":[{"index":%d' % choice + self.BEFORE_TEXT
        return head
