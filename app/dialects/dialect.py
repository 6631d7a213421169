"""How a family of models writes reasoning and calls: all that the scanner knows about it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from app.dialects.parts import Collector, Content, Kind, Reasoning
from app.dialects.reader import Reader, Reading
from app.dialects.written import Schemas, Written, on_channels

Tools = Mapping[str, Any]  # the JSON schema of each offered tool's parameters


class Form(Protocol):
    """A way to write calls."""

    @property
    def begins(self) -> tuple[str, ...]:
        """Markers before calls; "": they may also begin an answer without one."""

    def first(self, begin: str) -> str:  # noqa: ARG002
        """The characters of which one has to follow the marker `begin`; "": any."""
        return ""

    def read(self, reader: Reader, out: Collector, tools: Tools, begin: str) -> Reading[None]:
        """What follows the marker `begin`. Raises: Cut, Unfit."""

    def written(self, schemas: Schemas) -> Written | None:  # noqa: ARG002
        """How calls of these tools are written; None where no grammar says that."""
        return None


@dataclass(frozen=True)
class Thought:
    """The markers around reasoning."""

    begin: str
    ends: tuple[str, ...]
    hidden_end: bool = False  # an end without a beginning is no content


@dataclass(frozen=True)
class Dialect:
    thoughts: tuple[Thought, ...] = ()  # the first is the one that a prompt may begin
    forms: tuple[Form, ...] = ()
    channels: bool = False  # messages on channels, as gpt-oss has them, and nothing of the above
    call_ends_thought: bool = False  # a call within reasoning is one, and ends it
    trimmed: frozenset[Kind] = frozenset()  # whitespace around markers is no part of these
    hidden: tuple[str, ...] = ()  # markers that are no content wherever they are
    # The form that the family's chat template wants the ids of calls back in: `call_…`, nine characters, or
    # `functions.<name>:<number>`.
    ids: Literal["call", "nine", "numbered"] = "call"
    # Markers are special tokens, which engines leave out of the text unless they sample with skip_special_tokens=false.
    special_tokens: bool = False

    @property
    def calls(self) -> bool:
        """Whether it says how calls are written."""
        return bool(self.forms) or self.channels

    def written(self, schemas: Schemas) -> Written | None:
        """How a grammar has the model write calls of these tools; None where it can't."""
        if self.channels:
            return on_channels(schemas)
        return self.forms[0].written(schemas) if self.forms else None

    def begun(self, prompt: str) -> bool:
        """Whether a prompt ends with the beginning of reasoning."""
        return bool(self.thoughts) and prompt.rstrip().endswith(self.thoughts[0].begin)


BOTH: frozenset[Kind] = frozenset({Reasoning, Content})
