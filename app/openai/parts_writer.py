"""A chat's answer whose text is taken apart: reasoning and calls of tools have fields of their own.

`reasoning_content` is the name that vLLM and SGLang have for reasoning.
"""

import hashlib
from collections.abc import Callable
from typing import Any

import orjson

from app.dialects.output_parser import OutputParser
from app.dialects.parts import Arguments, CallBegun, Content, Part, Reasoning
from app.dispatch.generation_base import GenerationBase
from app.ids import RequestId
from app.messages import Delta
from app.openai.chat_writer import ChatWriter
from app.openai.conversation import AssistantMessage
from app.openai.schemas import ChatRequest

_FIELDS = {Content: b'{"content":', Reasoning: b'{"reasoning_content":'}


class PartsWriter(ChatWriter):
    """One event for each delta, whatever its parts: a client that resumes names the last event that it has."""

    BEFORE_TEXT, AFTER_TEXT = b',"delta":', b',"logprobs":'

    def __init__(self, call: GenerationBase, body: ChatRequest, make_parser: Callable[[], OutputParser]) -> None:
        super().__init__(call, body)
        self._make_parser = make_parser
        self._parsers: dict[int, OutputParser] = {}
        self._called: set[int] = set()  # choices with a call of a tool
        self._earlier = sum(len(m.tool_calls or ()) for m in body.messages if isinstance(m, AssistantMessage))

    def choice(self, index: int, d: Delta) -> dict[str, Any]:
        shown = self._fields(index, self._parts(index, d))
        made = super().choice(index, d) | {"finish_reason": self._finish(index, d)}
        calls = shown.get("tool_calls", [])
        made["message"]["content"] = shown.get("content", None if calls else "")
        made["message"]["reasoning_content"] = shown.get("reasoning_content")
        if calls:
            made["message"]["tool_calls"] = [{key: call[key] for key in ("id", "type", "function")} for call in calls]
        return made

    def delta(self, choice: int, d: Delta) -> bytes:
        parts = self._parts(choice, d)
        if d.finish is None and d.logprobs is None and not self._usage_always:
            if not parts:
                return b""
            head, part = self._heads.get(choice) or self._head(choice), parts[0]
            if len(parts) == 1 and isinstance(part, (Content, Reasoning)):  # nearly every delta
                return b"%b%b%b}%b" % (head, _FIELDS[type(part)], orjson.dumps(part.text), self._plain_tail)
            return b"%b%b%b" % (head, orjson.dumps(self._fields(choice, parts)), self._plain_tail)
        shown = orjson.dumps(self._fields(choice, parts))
        return b"%b%b%b" % (self._head(choice), shown, self.tail(choice, d, self._finish(choice, d)))

    def _finish(self, choice: int, d: Delta) -> str | None:
        """Where the length or a stop string ended it, a call may be cut off, and is not one to answer."""
        whole = d.finish == "stop" and not isinstance(d.stop, str)
        return "tool_calls" if whole and choice in self._called else d.finish

    def _parts(self, choice: int, d: Delta) -> list[Part]:
        parser = self._parsers.get(choice)
        if parser is None:
            parser = self._parsers[choice] = self._make_parser()
        parts = parser.feed(d.text)
        return parts if d.finish is None else [*parts, *parser.close()]

    def _fields(self, choice: int, parts: list[Part]) -> dict[str, Any]:
        """Of the message, that the parts add: each call once, with what there is of its arguments."""
        made: dict[str, Any] = {}
        calls: dict[int, dict[str, Any]] = {}
        for part in parts:
            if isinstance(part, Reasoning):
                made["reasoning_content"] = made.get("reasoning_content", "") + part.text
            elif isinstance(part, Content):
                made["content"] = made.get("content", "") + part.text
            elif isinstance(part, CallBegun):
                self._called.add(choice)
                calls[part.index] = {
                    "index": part.index,
                    "id": tool_call_id(self._call, choice, part, self._earlier),
                    "type": "function",
                    "function": {"name": part.name, "arguments": ""},
                }
            elif isinstance(part, Arguments):
                call = calls.setdefault(part.index, {"index": part.index, "function": {"arguments": ""}})
                call["function"]["arguments"] += part.text
        if calls:
            made["tool_calls"] = [*calls.values()]
        return made


def tool_call_id(call: GenerationBase, choice: int, begun: CallBegun, earlier: int, prefix: str = "call_") -> str:
    """As the model's template takes it back. `earlier`: how many calls the conversation has."""
    dialect = call.model.writing.dialect
    if dialect is not None and dialect.ids == "numbered":
        return f"functions.{begun.name}:{earlier + begun.index}"
    made = call_id(call.id, choice, begun.index, prefix)
    return made[-9:] if dialect is not None and dialect.ids == "nine" else made


def call_id(request: RequestId, choice: int, index: int, prefix: str = "call_") -> str:
    """The same on every replica that tells this answer."""
    return f"{prefix}{hashlib.sha256(f'{request}.{choice}.{index}'.encode()).hexdigest()[:24]}"
