"""The way in which a family of models writes reasoning and calls: all that the scanner knows about it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from app.dialects.call_grammar import CallGrammar, Schemas, channel_calls
from app.dialects.parts import Collector, Content, Kind, Reasoning
from app.dialects.reader import Reader, Reading

Tools = Mapping[str, Any]  # the JSON schema of each offered tool's parameters


class Form(Protocol):
    """A way to write tool calls."""

    @property
    def begins(self) -> tuple[str, ...]:
        """Markers before calls; "": they may also begin an answer without one."""

    def of(self, tools: Tools) -> "Form":
        """The form with what it needs to know of the offered tools."""
        return self

    def first(self, begin: str) -> str:
        """The characters of which one has to follow the marker `begin`; "": any."""
        return ""

    def ends(self, begin: str) -> tuple[str, ...]:
        """Markers behind the calls that `begin` begins; "": none."""
        return ()

    def read(self, reader: Reader, out: Collector, tools: Tools, begin: str) -> Reading[None]:
        """Reads what follows the marker `begin` into `out`. Raises: EndOfText, Mismatch."""

    def call_grammar(self, schemas: Schemas) -> CallGrammar | None:
        """The grammar of calls of these tools; None if there is none."""
        return None


@dataclass(frozen=True)
class Thought:
    """The markers around reasoning."""

    begin: str
    ends: tuple[str, ...]
    hidden_end: bool = False  # an end without a beginning is dropped


@dataclass(frozen=True)
class Dialect:
    thoughts: tuple[Thought, ...] = ()  # the first is the one that a prompt may begin
    forms: tuple[Form, ...] = ()
    channels: bool = False  # messages on channels, as gpt-oss has them, and nothing of the above
    call_ends_thought: bool = False  # a call's marker is one within reasoning, too, and ends it
    trimmed: frozenset[Kind] = frozenset()  # kinds of text without the whitespace around markers
    hidden: tuple[str, ...] = ()  # markers that are dropped everywhere
    wrappers: tuple[str, ...] = ()  # such markers around an answer: whitespace beside them is dropped, too
    addressed: str = ""  # such a marker before the calls of each tool, with `{}` for its name
    # The form of call ids that the family's chat template expects: `call_…`, nine characters, or
    # `functions.<name>:<number>`.
    ids: Literal["call", "nine", "numbered"] = "call"
    # Markers are special tokens, which engines leave out of the text unless they sample with skip_special_tokens=false.
    special_tokens: bool = False

    @property
    def calls(self) -> bool:
        """Whether it can read calls."""
        return bool(self.forms) or self.channels

    def call_grammar(self, schemas: Schemas) -> CallGrammar | None:
        """The grammar of calls of these tools; None if there is none."""
        if self.channels:
            return channel_calls(schemas)
        return self.forms[0].call_grammar(schemas) if self.forms else None

    def begun(self, prompt: str) -> bool:
        """Whether a prompt ends with the beginning of reasoning."""
        return bool(self.thoughts) and prompt.rstrip().endswith(self.thoughts[0].begin)


BOTH: frozenset[Kind] = frozenset({Reasoning, Content})
