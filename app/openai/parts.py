"""What generated text is made of, as a parser tells it: reasoning, content, and calls of tools."""

from typing import NamedTuple, Protocol, TypeAlias


class Reasoning(NamedTuple):
    text: str


class Content(NamedTuple):
    text: str


class CallBegun(NamedTuple):
    index: int  # type: ignore[assignment]  # (tuples have a method of that name) among a choice's calls, from 0
    name: str


class Arguments(NamedTuple):
    """A piece of them; all of a call's together are the JSON of an object, unless the text was cut off."""

    index: int  # type: ignore[assignment]
    text: str


Part: TypeAlias = Reasoning | Content | CallBegun | Arguments


class Parser(Protocol):
    """Of one choice. However its text is cut, the parts are the same when their pieces are put together."""

    def feed(self, text: str) -> list[Part]: ...

    def close(self) -> list[Part]:
        """At the end of the text: what was held back."""
