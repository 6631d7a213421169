"""The items of a response, made from its text: the same however the text is cut into pieces."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from app.dialects.content_spans import Span, SpanParser
from app.dialects.output_parser import OutputParser
from app.dialects.parts import Arguments, CallBegun, Content, Part, Reasoning
from app.messages.events import Delta, TokenLogprob
from app.openai.answer_types import TokenLogprob as ShownLogprob
from app.openai.content_logprobs import ContentLogprobs
from app.openai.logprobs import token_logprob
from app.openai.model_parser import ParserMaker
from app.openai.responses.answer_types import CallItem, CustomCallItem, ItemStatus, ReasoningItem, ReasoningPart
from app.openai.responses.answer_types import OutputItem as ShownItem
from app.openai.responses.answer_types import Part as ShownPart
from app.openai.responses.opaque import enclose
from app.openai.responses.tools import ToolName, custom_input

Kind = Literal["message", "reasoning", "function_call", "custom_tool_call"]
_PREFIX: Mapping[Kind, str] = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
}


class Called(NamedTuple):
    """The tool that an item calls."""

    call_id: str
    tool: ToolName
    number: int  # of the answer's calls


class OutputItem:
    """An item of a response, so far."""

    def __init__(self, kind: Kind, name: str, index: int, call: Called | None, *, encrypted: bool) -> None:
        """`name`: of the response, for ids. `encrypted`: reasoning is also shown as `encrypted_content`."""
        self.kind, self.index, self._called, self._encrypted = kind, index, call, encrypted
        self.id = f"{_PREFIX[kind]}_{name}_{index}"
        self.status: ItemStatus = "in_progress"
        self._text: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._shown: list[ShownLogprob] = []  # the first of these, in the client's form

    def add(self, text: str, logprobs: Sequence[TokenLogprob]) -> None:
        self._text.append(text)
        self._logprobs += logprobs

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def call(self) -> int | None:
        """The number of the answer's call that it is; None: it is none."""
        return self._called.number if self._called else None

    @property
    def name(self) -> str:
        """The name of the tool that it calls."""
        return self._called.tool.name if self._called else ""

    @property
    def input(self) -> str:
        """The text for a custom tool."""
        return custom_input(self.text)

    def logprobs(self) -> list[ShownLogprob]:
        self._shown += map(token_logprob, self._logprobs[len(self._shown) :])
        return self._shown

    def part(self) -> ShownPart:
        """The content part of a message."""
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs()}

    def thought(self) -> ReasoningPart:
        """The content part of reasoning."""
        return {"type": "reasoning_text", "text": self.text}

    @property
    def tokens_with_logprobs(self) -> int:
        return len(self._logprobs)

    def forget(self) -> None:
        self._logprobs.clear()
        self._shown.clear()

    def shown(self, *, begun: bool = False) -> ShownItem:
        """The item as clients get it; `begun`: still empty."""
        if self._called is not None:
            return self._shown_call(self._called, begun=begun)
        if self.kind == "reasoning":
            reasoning: ReasoningItem = {
                "id": self.id,
                "type": "reasoning",
                "summary": [],
                "content": [] if begun else [self.thought()],
                "status": self.status,
            }
            if self._encrypted and not begun:
                reasoning["encrypted_content"] = enclose(self.text)
            return reasoning
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "status": self.status,
            "content": [] if begun else [self.part()],
        }

    def _shown_call(self, call: Called, *, begun: bool) -> CallItem | CustomCallItem:
        call_id, tool, _ = call
        if tool.custom:
            custom: CustomCallItem = {
                "id": self.id,
                "type": "custom_tool_call",
                "call_id": call_id,
                "name": tool.name,
                "namespace": tool.namespace or "",
                "input": "" if begun else self.input,
                "status": self.status,
            }
            if not tool.namespace:
                del custom["namespace"]
            return custom
        function: CallItem = {
            "id": self.id,
            "type": "function_call",
            "call_id": call_id,
            "name": tool.name,
            "namespace": tool.namespace or "",
            "arguments": "" if begun else self.text,
            "status": self.status,
        }
        if not tool.namespace:
            del function["namespace"]
        return function


class ItemChange(NamedTuple):
    """A change of an item; `text` and `logprobs` are those that it adds."""

    kind: Literal["begins", "grows", "ends"]
    item: OutputItem
    text: str = ""
    logprobs: Sequence[TokenLogprob] = ()


class Output:
    def __init__(
        self,
        name: str,
        make_parser: ParserMaker | None,
        call_id: Callable[[CallBegun], str],
        tools: Mapping[str, ToolName],
        *,
        encrypted: bool,
        logprobs: bool = False,
    ) -> None:
        """`make_parser`: None where the whole text is one message. `logprobs`: messages have those of their tokens."""
        self.items: list[OutputItem] = []
        self._name, self._call_id, self._tools, self._encrypted = name, call_id, tools, encrypted
        self._parser: OutputParser | None = None
        if make_parser is not None:
            self._parser = make_parser.with_spans() if logprobs else make_parser()
        self._logprobs = ContentLogprobs() if logprobs else None
        self._size = 0  # of the text, if there is no parser
        self._spans: deque[Span] = deque()  # of the content in the parts that come next

    def add(self, d: Delta) -> list[ItemChange]:
        parser, logprobs = self._parser, self._logprobs
        parts: list[Part] = [Content(d.text)] if parser is None else parser.feed(d.text)
        if parser is not None and d.finish is not None:
            parts = [*parts, *parser.close()]
        if logprobs is None:
            return [*self._take(parts)]
        logprobs.add(d.text, d.logprobs, last=d.finish is not None)
        if isinstance(parser, SpanParser):
            self._spans += parser.spans()
            final = parser.final
        else:
            final = self._size + len(d.text)
            self._spans.append((self._size, final))
            self._size = final
        changes = [*self._take(parts)]
        logprobs.drop(final)
        return changes

    @property
    def reasoning(self) -> str:
        return "".join(item.text for item in self.items if item.kind == "reasoning")

    def end(self, status: ItemStatus) -> list[ItemChange]:
        """`status`: of the item that it ended in. An empty answer is an empty message."""
        changes = [] if self.items else [*self._take([Content("")])]
        return [*changes, *self._end(status)]

    def cut(self) -> None:
        """The answer failed."""
        if self.items:
            self.items[-1].status = "incomplete"

    def _take(self, parts: Iterable[Part]) -> Iterable[ItemChange]:
        for part in parts:
            if isinstance(part, CallBegun):
                tool = self._tools.get(part.name) or ToolName(part.name)
                call = Called(self._call_id(part), tool, part.index)
                yield from self._begin("custom_tool_call" if tool.custom else "function_call", call)
                continue
            if not isinstance(part, Arguments):
                kind: Kind = "reasoning" if isinstance(part, Reasoning) else "message"
                if not self.items or self.items[-1].kind != kind or self.items[-1].status != "in_progress":
                    yield from self._begin(kind)
            own = self._tokens_of(part) if isinstance(part, Content) else ()
            item = self.items[-1]
            item.add(part.text, own)
            yield ItemChange("grows", item, part.text, own)

    def _tokens_of(self, part: Content) -> Sequence[TokenLogprob]:
        """Tokens that end in the part."""
        if self._logprobs is None:
            return ()
        rest, spans = len(part.text), []
        while rest > 0:
            spans.append(self._spans.popleft())
            rest -= spans[-1][1] - spans[-1][0]
        return self._logprobs.of(spans)

    def _begin(self, kind: Kind, call: Called | None = None) -> Iterable[ItemChange]:
        yield from self._end("completed")
        item = OutputItem(kind, self._name, len(self.items), call, encrypted=self._encrypted)
        self.items.append(item)
        yield ItemChange("begins", item)

    def _end(self, status: ItemStatus) -> list[ItemChange]:
        if not self.items or self.items[-1].status != "in_progress":
            return []
        is_broken = self._parser is not None and self.items[-1].call in self._parser.unfinished
        item = self.items[-1]
        item.status = "incomplete" if is_broken else status
        rest = self._logprobs.rest() if self._logprobs is not None and item.kind == "message" else []
        item.add("", rest)
        return [*([ItemChange("grows", item, "", rest)] if rest else []), ItemChange("ends", item)]
