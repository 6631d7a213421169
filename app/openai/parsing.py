"""Which parser takes an answer of a model apart."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from app.dispatch.generation_base import GenerationBase
from app.dispatch.models import Model
from app.errors import RequestError
from app.openai.output_parser import OutputParser
from app.openai.parts import Content, Parser, Part, Reasoning
from app.openai.prompt import PromptRequest
from app.pools import Reasoning as Markers

_TAIL = 16  # tokens of a prompt

# For the parameters of each tool by its name, and whether the text begins inside reasoning.
MakeParser: TypeAlias = Callable[[Mapping[str, dict[str, Any]], bool], Parser]
PARSERS: dict[str, MakeParser] = {}  # by dialect


class ReasoningParser:
    """Of models of which only the markers of reasoning are known."""

    def __init__(self, markers: Markers, *, begun: bool) -> None:
        self._parser = OutputParser(markers.model_copy(update={"begun": begun}))

    def feed(self, text: str) -> list[Part]:
        return _as_parts(*self._parser.feed(text))

    def close(self) -> list[Part]:
        return _as_parts(*self._parser.close())


def _as_parts(reasoning: str, content: str) -> list[Part]:
    parts: list[Part] = [Reasoning(reasoning)] if reasoning else []
    return [*parts, Content(content)] if content else parts


def check_dialect(model: Model, asked: PromptRequest) -> None:
    """Raises: RequestError when calls of tools could not be told from text."""
    if asked.offered and model.dialect not in PARSERS:
        said = "names no dialect" if model.dialect is None else f"names an unknown dialect, '{model.dialect}'"
        raise RequestError(
            f"'tools': the pool of this model {said}, so calls of tools can't be told from text.", param="tools"
        )


def parser_maker(call: GenerationBase, asked: PromptRequest) -> Callable[[], Parser] | None:
    """For each choice; None where the text is the content as it comes."""
    model, tools = call.model, {tool.function.name: tool.parameters for tool in asked.offered}
    begun = _begun(call, model.reasoning, asked) if model.reasoning is not None else False
    if tools and (make := PARSERS.get(model.dialect or "")) is not None:
        return lambda: make(tools, begun)
    if (markers := model.reasoning) is not None:
        return lambda: ReasoningParser(markers, begun=begun)
    return None


def _begun(call: GenerationBase, markers: Markers, asked: PromptRequest) -> bool:
    """What the prompt ends with decides: the client may have told the template not to begin with reasoning."""
    tail = call.model.tokenizer.decode(call.prompts[0][-_TAIL:], skip_special_tokens=False).rstrip()
    if tail.endswith(markers.begin):
        return True
    return markers.begun and not tail.endswith(markers.end) and not asked.continue_final_message
