"""Server-sent events of a streamed answer, as bytes. The hot path of the API: one call of `delta` per token.

All of a chunk's JSON but the text is built once per choice.
"""

from collections.abc import Callable
from typing import Any, Literal

import orjson

from app.dispatch.generation_base import GenerationBase
from app.messages import Delta
from app.openai.schemas import StreamOptions

Kind = Literal["chat", "text"]
DONE = b"data: [DONE]\n\n"

_OBJECT = {"chat": b"chat.completion.chunk", "text": b"text_completion"}
_BEFORE_TEXT = {"chat": b',"delta":{"content":', "text": b',"text":'}
_AFTER_TEXT = {"chat": b'},"logprobs":', "text": b',"logprobs":'}
_PLAIN_END = b'null,"finish_reason":null}]'


class ChunkWriter:
    """Writes the chunks of one answer."""

    def __init__(
        self, kind: Kind, call: GenerationBase, *, logprobs: Callable[[int, Delta], Any], options: StreamOptions | None
    ) -> None:
        """`logprobs` shapes a delta's logprobs for choice i."""
        self._kind, self._logprobs, self._usage = kind, logprobs, call.usage
        self._usage_at_end = bool(options and options.include_usage)
        self._usage_always = bool(options and options.continuous_usage_stats)
        tier = call.plan.tier
        self._start = b'data: {"id":"%b","object":"%b","created":%d,"model":%b,%b' % (
            call.id.encode(),
            _OBJECT[kind],
            call.created,
            orjson.dumps(call.model.name),
            b'"service_tier":"%b",' % tier.encode() if tier else b"",
        )
        self._heads: dict[int, bytes] = {}
        # OpenAI sends `usage: null` with every chunk when the last one will carry it.
        self._end = b',"usage":null}\n\n' if self._usage_at_end else b"}\n\n"
        self._plain_tail = _AFTER_TEXT[kind] + _PLAIN_END + self._end

    def delta(self, choice: int, d: Delta) -> bytes:
        """One event; nothing when there is nothing to tell (a token that ends no character yet)."""
        if d.finish is None and d.logprobs is None and not self._usage_always:
            if not d.text:
                return b""
            head = self._heads.get(choice) or self._head(choice)
            return b"%b%b%b" % (head, orjson.dumps(d.text), self._plain_tail)
        return b"".join(
            (
                self._head(choice),
                orjson.dumps(d.text),
                _AFTER_TEXT[self._kind],
                orjson.dumps(self._logprobs(choice, d)),
                b',"finish_reason":%b' % orjson.dumps(d.finish),
                b',"stop_reason":%b}]' % orjson.dumps(d.stop) if d.finish else b"}]",
                b',"usage":%b}\n\n' % orjson.dumps(self._usage()) if self._usage_always else self._end,
            )
        )

    def opening(self, choices: int) -> bytes:
        """What comes before the first delta: in a chat the role of each choice, which OpenAI's clients take from it."""
        return b"".join(map(self._role, range(choices))) if self._kind == "chat" else b""

    def _role(self, choice: int) -> bytes:
        return (
            self._start
            + b'"choices":[{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
            % choice
            + self._end
        )

    def last(self) -> bytes:
        if not self._usage_at_end:
            return DONE
        return b'%b"choices":[],"usage":%b}\n\n%b' % (self._start, orjson.dumps(self._usage()), DONE)

    def _head(self, choice: int) -> bytes:
        head = self._heads[choice] = self._start + b'"choices":[{"index":%d' % choice + _BEFORE_TEXT[self._kind]
        return head


def error_event(body: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(body)
