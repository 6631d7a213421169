"""The parts of generated text: reasoning and content, told apart by the markers around a model's reasoning.

Fed with text in pieces of any size, it gives the same parts however the text was cut. Each character is looked at a
bounded number of times. Other kinds of parts, tool calls say, are further states here.
"""

from typing import NamedTuple

from app.pools import Reasoning


class Parts(NamedTuple):
    """That a piece of text adds."""

    reasoning: str
    content: str


class OutputParser:
    """Of one choice."""

    def __init__(self, markers: Reasoning) -> None:
        self._begin, self._end = markers.begin, markers.end
        self._inside = markers.begun
        self._held = ""  # may be the beginning of the marker that is looked for

    def feed(self, text: str) -> Parts:
        reasoning: list[str] = []
        content: list[str] = []
        text, self._held = self._held + text, ""
        while True:
            marker = self._end if self._inside else self._begin
            at = text.find(marker)
            kept = len(text) - _overlap(text, marker) if at < 0 else at
            (reasoning if self._inside else content).append(text[:kept])
            if at < 0:
                self._held = text[kept:]
                return Parts("".join(reasoning), "".join(content))
            text, self._inside = text[at + len(marker) :], not self._inside

    def close(self) -> Parts:
        """At the end of the text: what looked like the beginning of a marker was none."""
        held, self._held = self._held, ""
        return Parts(held, "") if self._inside else Parts("", held)


def _overlap(text: str, marker: str) -> int:
    """The longest beginning of `marker`, not all of it, with which `text` ends."""
    for size in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:size]):
            return size
    return 0
