"""Finds stop strings in text that comes in pieces."""

from collections.abc import Sequence


class StopScanner:
    """Holds text back while it may be the beginning of a stop string, unless stop strings are to be included."""

    def __init__(self, stops: Sequence[str], *, include: bool) -> None:
        self._stops = stops
        self._include = include
        self._reach = max(map(len, stops)) - 1
        self._tail = ""  # the last characters seen: held back, or released already when including

    def push(self, text: str, *, check: bool = True) -> tuple[str, str | None]:
        """The text that may be sent now, and the stop string found, if any. `check`: look for one ending in `text`."""
        tail_len = len(self._tail)
        window = self._tail + text
        start = tail_len if self._include else 0
        if check:
            # A match has to end in the new text: earlier ends were checked before, or must not count.
            ends = [(at + len(s), s) for s in self._stops if (at := window.find(s, max(0, tail_len - len(s) + 1))) >= 0]
            if ends:
                end, stop = min(ends)
                return window[start : end if self._include else end - len(stop)], stop
        tail_start = max(0, len(window) - self._reach)
        self._tail = window[tail_start:]
        return (text if self._include else window[:tail_start]), None

    def flush(self) -> str:
        """The text held back, for an answer that ends without a stop string."""
        return "" if self._include else self._tail
