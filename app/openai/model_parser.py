"""The parser of a model's answer, and whether the answer's text begins inside reasoning."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from app.dialects.content_spans import SpanParser
from app.dialects.dialect import Dialect, Tools
from app.dialects.output_parser import OutputParser
from app.dispatch.generation_base import GenerationBase
from app.dispatch.models.models import Model
from app.errors import RequestError
from app.messages.job import ContentRules
from app.openai.answer_grammar import Situation
from app.openai.prompt import PromptRequest
from app.openai.tools import ToolsRequest

_TAIL = 16  # tokens of a prompt


class Place(NamedTuple):
    """The place where an answer begins."""

    begun: bool = False  # within reasoning
    over: bool = False  # behind it


_IN_CONTENT = Place()


def check_dialect(model: Model, request: ToolsRequest) -> None:
    """Raises: RequestError when tool calls could not be told from text."""
    dialect = model.writing.dialect
    if request.offered and (dialect is None or not dialect.calls):
        raise RequestError(
            "'tools': it is not known how this model writes tool calls. Its pool can name a 'dialect'.",
            param="tools",
        )


def read_dialect(model: Model, request: ToolsRequest) -> Dialect | None:
    """The dialect that an answer is parsed by; None where all its text is content."""
    return model.writing.dialect if model.writing.reasons or (request.tools and request.offered) else None


@dataclass(frozen=True)
class ParserMaker:
    """Makes a parser for each choice."""

    dialect: Dialect
    tools: Tools
    place: Place

    def __call__(self) -> OutputParser:
        return OutputParser(self.dialect, self.tools, begun=self.place.begun, over=self.place.over)

    def with_spans(self) -> SpanParser:
        return SpanParser(self.dialect, self.tools, begun=self.place.begun, over=self.place.over)


def parser_maker(call: GenerationBase, request: PromptRequest) -> ParserMaker | None:
    """None where all text is content."""
    place = place_in_reasoning(call.model, call.prompts[0], request)
    return make_parser(call.model, request, place)


def make_parser(model: Model, request: ToolsRequest, place: Place) -> ParserMaker | None:
    """None where all text is content."""
    dialect = read_dialect(model, request)
    if dialect is None:
        return None
    tools = {tool.function.name: tool.parameters for tool in request.offered} if request.tools else {}
    return ParserMaker(dialect, tools, place)


def content_rules(model: Model, prompt: Sequence[int], request: PromptRequest) -> ContentRules:
    """Rules by which a worker knows what of an answer's text is content."""
    place, tools = place_in_reasoning(model, prompt, request), tuple(tool.function.name for tool in request.offered)
    return ContentRules(model.dialect, model.writing.markers, tools, place.begun, place.over)


def situation(model: Model, prompt: list[int], request: PromptRequest) -> Situation:
    """The way in which an answer to this prompt begins. One that continues a message continues its content."""
    dialect, (in_reasoning, over) = read_dialect(model, request), place_in_reasoning(model, prompt, request)
    if dialect is None or not dialect.thoughts or request.continue_final_message:
        return Situation(dialect, in_reasoning)
    return Situation(dialect, in_reasoning, reasons=model.writing.reasons and not over)


def place_in_reasoning(model: Model, prompt: Sequence[int], request: PromptRequest) -> Place:
    """The place where an answer to this prompt begins.

    The prompt's end decides: the client may have told the template not to begin with reasoning.
    """
    writing = model.writing
    dialect = writing.dialect
    if dialect is None or not dialect.thoughts or read_dialect(model, request) is None:
        return _IN_CONTENT
    tail = model.tokenizer.decode([*prompt[-_TAIL:]], skip_special_tokens=False).rstrip()
    if dialect.begun(tail):
        return Place(begun=True)
    over = tail.endswith(dialect.thoughts[0].ends)
    return Place(writing.begun and not over and not request.continue_final_message, over)
