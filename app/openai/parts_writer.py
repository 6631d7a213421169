"""A chat's answer whose text is parsed: reasoning and tool calls have fields of their own.

`reasoning_content` is SGLang's name for reasoning, `reasoning` vLLM's: the pool says which one is used.
"""

import asyncio
from collections import defaultdict
from functools import cached_property

import orjson
from msgspec.structs import replace

from app.dialects.content_spans import SpanParser
from app.dialects.output_parser import OutputParser
from app.dialects.parts import Arguments, CallBegun, Content, Part, Reasoning
from app.dispatch.generation_base import GenerationBase
from app.messages.events import Delta, TokenLogprob
from app.openai.answer_types import (
    CallDelta,
    Called,
    ChatAnswer,
    ChatChoice,
    ChatDelta,
    ChatFinish,
    ChatLogprobs,
    ToolCall,
    Usage,
)
from app.openai.call_ids import CallIds, earlier_calls
from app.openai.chat_writer import ChatWriter
from app.openai.content_logprobs import ContentLogprobs
from app.openai.model_parser import ParserMaker
from app.openai.reasoning_tokens import SHORT, reasoning_tokens
from app.openai.schemas import ChatRequest
from app.openai.tools import NamedTool


class PartsWriter(ChatWriter):
    """One event for each delta, whatever its parts are: a client that resumes names its last event."""

    BEFORE_TEXT, AFTER_TEXT = b',"delta":', b',"logprobs":'

    def __init__(self, call: GenerationBase, body: ChatRequest, make_parser: ParserMaker) -> None:
        super().__init__(call, body)
        self._make_parser = make_parser
        self._parsers: dict[int, OutputParser] = {}
        # Whoever asks for tokens by their ids asks for all of them, as vLLM gives them.
        self._with_logprobs = bool(body.logprobs) and not body.return_tokens_as_token_ids
        self._logprobs: dict[int, ContentLogprobs] = {}  # by choice
        self._told: list[TokenLogprob] | None = None  # of the content of the present delta
        self._called: set[int] = set()  # choices with a tool call
        self._thoughts: dict[int, list[str]] = defaultdict(list)  # reasoning, by choice
        self._reasoned: int | None = None  # its tokens, once they are counted
        self._hides = body.include_reasoning is False
        self._reasoning = call.model.writing.reasoning_field
        self._fronts = {Content: b'{"content":', Reasoning: b'{"%b":' % self._reasoning.encode()}
        self._named = isinstance(body.tool_choice, NamedTool)
        self._messages = body.messages if body.tools else ()

    @cached_property
    def _ids(self) -> CallIds:
        return CallIds(self._call.model, self._call.id, earlier_calls(self._messages))

    def choice(self, index: int, d: Delta) -> ChatChoice:
        fields = self._fields(index, self._parts(index, d))
        result, finish = super().choice(index, d), self._finish(index, d)
        assert finish is not None
        result["finish_reason"] = finish
        calls = fields.get("tool_calls", [])
        result["logprobs"] = self.logprobs(index, d)
        result["message"]["content"] = fields.get("content", None if calls else "")
        result["message"][self._reasoning] = fields.get(self._reasoning)
        if calls:
            result["message"]["tool_calls"] = [_whole_call(call) for call in calls]
        return result

    def content(self, choice: int, d: Delta) -> str:
        return "".join([part.text for part in self._parts(choice, d) if isinstance(part, Content)])

    def delta(self, choice: int, d: Delta) -> bytes:
        parts = self._parts(choice, d)
        if d.weights != self._weights:
            self._begin(d.weights)
        if d.finish is None and d.logprobs is None and self._only_text:
            if not parts:
                return b""
            head, part = self._heads.get(choice) or self._head(choice), parts[0]
            if len(parts) == 1 and isinstance(part, (Content, Reasoning)):  # nearly every delta
                return b"%b%b%b}%b" % (head, self._fronts[type(part)], orjson.dumps(part.text), self._plain_tail)
            return b"%b%b%b" % (head, orjson.dumps(self._fields(choice, parts)), self._plain_tail)
        payload = orjson.dumps(self._fields(choice, parts))
        return b"%b%b%b" % (self._head(choice), payload, self.tail(choice, d, self._finish(choice, d)))

    def logprobs(self, choice: int, d: Delta) -> ChatLogprobs | None:
        """Logprobs of the content.

        Those of a delta whose tokens are not yet known to be content come with a later one.
        """
        if not self._with_logprobs:
            return super().logprobs(choice, d)
        return super().logprobs(choice, replace(d, logprobs=self._told))

    def answer(self, choices: list[tuple[int, Delta]]) -> ChatAnswer:
        result = super().answer(choices)
        self._count_reasoning()
        return result

    def usage(self) -> Usage:
        """Has the reasoning's tokens when the answer is complete."""
        usage = super().usage()
        if self._reasoned is None:
            return usage
        reasoning_count = min(self._reasoned, self._call.completion_tokens)
        usage["completion_tokens_details"] = {"reasoning_tokens": reasoning_count}
        return usage

    async def settle(self) -> None:
        if not self._usage_at_end:
            return
        if sum(len(text) for texts in self._thoughts.values() for text in texts) <= SHORT:
            self._count_reasoning()
        else:
            await asyncio.to_thread(self._count_reasoning)

    def _count_reasoning(self) -> None:
        model = self._call.model
        self._reasoned = sum(reasoning_tokens(model, "".join(pieces)) for pieces in self._thoughts.values())

    def _finish(self, choice: int, d: Delta) -> ChatFinish | None:
        """The choice's finish reason.

        When the length or a stop string ended the answer, a call may be cut off, and must not be run.
        Nor must one that the model has broken: then it says `stop`.
        When the client has named the tool, OpenAI says `stop`.
        """
        if d.finish != "stop" or isinstance(d.stop, str) or choice not in self._called or self._named:
            return d.finish
        return "stop" if self._parsers[choice].unfinished else "tool_calls"

    def _parts(self, choice: int, d: Delta) -> list[Part]:
        parser = self._parsers.get(choice)
        if parser is None:
            make = self._make_parser.with_spans if self._with_logprobs else self._make_parser
            parser = self._parsers[choice] = make()
        parts = parser.feed(d.text)
        if d.finish is not None:
            parts = [*parts, *parser.close()]
        if isinstance(parser, SpanParser):
            self._tell(choice, d, parser)
        for part in parts:
            if type(part) is Reasoning:
                self._thoughts[choice].append(part.text)
        return [part for part in parts if not isinstance(part, Reasoning)] if self._hides else parts

    def _tell(self, choice: int, d: Delta, parser: SpanParser) -> None:
        collector = self._logprobs.setdefault(choice, ContentLogprobs())
        collector.add(d.text, d.logprobs, last=d.finish is not None)
        logprobs = collector.of(parser.spans())
        if d.finish is not None:
            logprobs += collector.rest()
        collector.drop(parser.final)
        self._told = logprobs if logprobs or d.finish is not None else None

    def _fields(self, choice: int, parts: list[Part]) -> ChatDelta:
        """The message's fields that the parts add: each call once, with the new text of its arguments."""
        fields: ChatDelta = {}
        calls: dict[int, CallDelta] = {}
        for part in parts:
            if isinstance(part, Reasoning):
                fields[self._reasoning] = fields.get(self._reasoning, "") + part.text
            elif isinstance(part, Content):
                fields["content"] = fields.get("content", "") + part.text
            elif isinstance(part, CallBegun):
                self._called.add(choice)
                calls[part.index] = {
                    "index": part.index,
                    "id": self._ids.of(part, choice),
                    "type": "function",
                    "function": {"name": part.name, "arguments": ""},
                }
            elif isinstance(part, Arguments):
                call = calls.setdefault(part.index, {"index": part.index, "function": {"arguments": ""}})
                call["function"]["arguments"] += part.text
        if calls:
            fields["tool_calls"] = [*calls.values()]
        return fields


def _whole_call(call: CallDelta) -> ToolCall:
    function = call["function"]
    tool: Called = {"name": function["name"], "arguments": function["arguments"]}
    return {"id": call["id"], "type": call["type"], "function": tool}
