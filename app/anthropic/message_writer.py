"""An answer as a message of content blocks: whole, or as server-sent events.

Blocks never interleave: one ends before the next begins. `delta` is called once per token.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import orjson
from pydantic_core import from_json

from app.anthropic.answer_types import (
    Block,
    Event,
    Message,
    MessageUsage,
    SignatureDelta,
    Stop,
    StopReason,
    Text,
    ThinkingText,
    ToolUse,
)
from app.anthropic.schemas import MessagesRequest
from app.dialects.output_parser import OutputParser
from app.dialects.parts import Arguments, CallBegun, Content, Part, Reasoning
from app.dispatch.generation_base import GenerationBase
from app.errors import EngineFailed
from app.messages.deltas import merge
from app.messages.events import Delta
from app.openai.call_ids import CallIds, earlier_calls

_CALL_PREFIX = "toolu_"
# JSON's, of a character of one or of two; or of half of one, a lone surrogate.
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(?P<half>u[dD][89a-fA-F]..)|.)", re.DOTALL)
# Type and field of the pieces of a block, by its kind.
_PIECES = {
    Content: (b"text_delta", b"text"),
    Reasoning: (b"thinking_delta", b"thinking"),
    Arguments: (b"input_json_delta", b"partial_json"),
}


class MessageWriter:
    """Writes one answer."""

    def __init__(
        self, call: GenerationBase, body: MessagesRequest, make_parser: Callable[[], OutputParser] | None
    ) -> None:
        self._call, self._body = call, body
        self._parser = None if make_parser is None else make_parser()
        self._ids = CallIds(call.model, call.id, earlier_calls(body.chat.messages))
        self._end = Delta(call.id, 0, "", [])  # the last delta
        self._called = False
        self._index = -1  # of the block that was begun last
        self._kind: type[Part] | None = None  # of its pieces, while it is open
        self._piece = b""  # the event of a piece, up to its text

    async def whole(self) -> Message:
        """Raises: the error that ended it."""
        call = self._call
        content = await call.made(self._content, await call.whole())
        return self._message(content, self._stop())

    def opening(self, _choices: int) -> bytes:
        """The event before the first delta. How much of the prompt was cached is known only at the end."""
        return _event({"type": "message_start", "message": self._message([], _stopped(None))})

    def delta(self, _choice: int, d: Delta) -> bytes:
        """A delta's events; none when there is nothing to send."""
        if self._parser is None and self._kind is Content and d.finish is None:
            return b"%b%b}}\n\n" % (self._piece, orjson.dumps(d.text)) if d.text else b""
        return b"".join([*map(self._part, self._parts(d)), b"" if d.finish is None else self._close()])

    async def settle(self) -> None:
        """Nothing that takes time."""

    def last(self) -> bytes:
        """Raises: EngineFailed."""
        end = _event({"type": "message_delta", "delta": self._stop(), "usage": self._usage()})
        return end + _event({"type": "message_stop"})

    def _parts(self, d: Delta) -> Sequence[Part]:
        if d.finish is not None:
            self._end = d
        if self._parser is None:
            return [Content(d.text)] if d.text else []
        parts = self._parser.feed(d.text)
        return parts if d.finish is None else [*parts, *self._parser.close()]

    def _part(self, part: Part) -> bytes:
        if isinstance(part, CallBegun):
            return self._open(Arguments, self._tool_use(part, {}))
        opening = b""
        if self._kind is not type(part):
            opening = self._open(type(part), _EMPTY[type(part)])
        if isinstance(part, Reasoning) and not self._body.shows_thinking:
            return opening
        return b"%b%b%b}}\n\n" % (opening, self._piece, orjson.dumps(part.text))

    def _open(self, kind: type[Part], block: Block) -> bytes:
        closing = self._close()
        self._index, self._kind = self._index + 1, kind
        self._piece = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":'
            % (self._index, *_PIECES[kind])
        )
        return closing + _event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _close(self) -> bytes:
        if self._kind is None:
            return b""
        index, signature = self._index, b""
        if self._kind is Reasoning:
            delta: SignatureDelta = {"type": "signature_delta", "signature": self._signature(index)}
            signature = _event({"type": "content_block_delta", "index": index, "delta": delta})
        self._kind = None
        return signature + _event({"type": "content_block_stop", "index": index})

    def _tool_use(self, part: CallBegun, value: dict[str, Any]) -> ToolUse:
        self._called = True
        id_ = self._ids.of(part, prefix=_CALL_PREFIX)
        return {"type": "tool_use", "id": id_, "name": part.name, "input": value, "caller": {"type": "direct"}}

    def _signature(self, index: int) -> str:
        """The same on every replica. Clients send it back; nothing here depends on it."""
        return hashlib.sha256(f"{self._call.id}.{index}".encode()).hexdigest()

    def _content(self, deltas: list[tuple[int, Delta]]) -> list[Block]:
        """The blocks."""
        openings: list[tuple[Part, list[str]]] = []  # the first part of each block, and its texts
        for part in [part for _, d in merge(deltas) for part in self._parts(d)]:
            if isinstance(part, CallBegun):
                openings.append((part, []))
                continue
            if not isinstance(part, Arguments) and not (openings and type(openings[-1][0]) is type(part)):
                openings.append((part, []))
            openings[-1][1].append(part.text)
        return [self._block(index, part, "".join(texts)) for index, (part, texts) in enumerate(openings)]

    def _block(self, index: int, first: Part, text: str) -> Block:
        if isinstance(first, CallBegun):
            return self._tool_use(first, _object(text))
        if isinstance(first, Reasoning):
            thinking = text if self._body.shows_thinking else ""
            return {"type": "thinking", "thinking": thinking, "signature": self._signature(index)}
        return {"type": "text", "text": text, "citations": None}

    def _message(self, content: list[Block], stop: Stop) -> Message:
        call = self._call
        return {
            "id": call.id,
            "type": "message",
            "role": "assistant",
            "model": call.model.name,
            "content": content,
            "container": None,
            **stop,
            "usage": self._usage(),
        }

    def _stop(self) -> Stop:
        """The fields that say why the answer stopped.

        When the length or a stop string ended it, a call may be cut off, and must not be run. Nor must one that the
        model has broken: then it says `end_turn`.

        Raises: EngineFailed when the engine gave up.
        """
        finish, stop = self._end.finish, self._end.stop
        if finish == "length":
            full = self._call.completion_tokens < self._body.max_tokens
            return _stopped("model_context_window_exceeded" if full else "max_tokens")
        if finish != "stop":
            raise EngineFailed("The engine gave up this answer.")
        if isinstance(stop, str):
            return _stopped("stop_sequence", stop)
        has_calls = self._called and self._parser is not None and not self._parser.unfinished
        return _stopped("tool_use" if has_calls else "end_turn")

    def _usage(self) -> MessageUsage:
        call = self._call
        return {
            "input_tokens": call.prompt_tokens - call.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": call.cached_tokens,
            "cache_creation": None,
            "output_tokens": call.completion_tokens,
            "output_tokens_details": None,
            "server_tool_use": None,
            "inference_geo": None,
            "service_tier": "flex" if call.plan.tier == "flex" else "standard",
        }


_EMPTY: dict[type[Part], Text | ThinkingText] = {
    Content: {"type": "text", "text": "", "citations": None},
    Reasoning: {"type": "thinking", "thinking": "", "signature": ""},
}


def _stopped(reason: StopReason | None, sequence: str | None = None) -> Stop:
    return {"stop_reason": reason, "stop_sequence": sequence, "stop_details": None}


def _event(event: Event) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event))


def _object(arguments: str) -> Any:
    """A call's input; if it was cut off, as much as Anthropic's client would show of a stream.

    Empty if the model wrote no object. Numbers that JSON doesn't have become null where it is written, and escapes of
    half a character U+FFFD.
    """
    try:
        value = _begun(arguments)
    except ValueError:
        try:
            value = _begun(_ESCAPE.sub(_of_whole_character, arguments))
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


def _begun(text: str) -> Any:
    """Reads what was written so far of a JSON value. Raises: ValueError."""
    return from_json(text, allow_partial="trailing-strings")


def _of_whole_character(escape: re.Match[str]) -> str:
    return r"\ufffd" if escape["half"] else escape[0]
