"""Reads text by a dialect: reasoning and content here, calls by the dialect's forms."""

from functools import partial

from app.dialects.channels import read_channels
from app.dialects.dialect import Dialect, Form, Tools
from app.dialects.parts import Collector, Content, Kind, Reasoning
from app.dialects.reader import EndOfText, MarkerSet, Mismatch, Reader, Reading, marker_set


class Scanner:
    """Reads one choice's text."""

    def __init__(
        self, dialect: Dialect, tools: Tools, reader: Reader, out: Collector, *, begun: bool, over: bool
    ) -> None:
        self._dialect, self._tools = dialect, tools
        self._reader, self._out = reader, out
        self._forms = tuple(form.of(tools) for form in dialect.forms) if tools else ()
        tool_markers = (dialect.addressed.format(name) for name in tools) if dialect.addressed else ()
        self._wrappers = (*dialect.wrappers, *tool_markers)
        self._hidden = (*dialect.hidden, *self._wrappers)
        self._kind: Kind = Reasoning if begun else Content
        self._thought = dialect.thoughts[0] if dialect.thoughts else None
        self._over = over  # reasoning is, until a call: a marker that would begin it is in a text about such markers

    def run(self) -> Reading[None]:
        """Reads the whole text."""
        if self._dialect.channels:
            yield from read_channels(self._reader, self._out, self._tools)
            return
        try:
            if self._kind is Reasoning:
                self._out.switch(Reasoning)
            else:
                yield from self._unmarked()
            yield from self._texts()
        except EndOfText:
            pass
        self._out.close(self._kind)

    def _texts(self) -> Reading[None]:
        while True:
            kind = self._kind
            mark = yield from self._reader.pieces(self._marks(), partial(self._out.text, kind))
            yield from self._marked(mark)

    def _marks(self) -> MarkerSet:
        """The markers that end a text of the present kind."""
        dialect = self._dialect
        begins = [b for form in self._forms for b in form.begins if b]
        if self._kind is Reasoning:
            assert self._thought is not None
            markers = list(self._thought.ends)
            if dialect.call_ends_thought:
                markers += [form.begins[0] for form in self._forms]
        else:
            markers = [] if self._over else [t.begin for t in dialect.thoughts]
            markers += begins
            markers += [end for t in dialect.thoughts if t.hidden_end for end in t.ends]
        return marker_set(*markers, *self._hidden)

    def _marked(self, mark: str) -> Reading[None]:
        if self._thought and self._kind is Reasoning and mark in self._thought.ends:
            self._switch(Content)
            self._over = True
            if not self._out.calls:
                yield from self._unmarked()
            return
        if self._kind is Content:
            for markers in self._dialect.thoughts:
                if mark == markers.begin:
                    self._thought = markers
                    self._switch(Reasoning)
                    return
        forms = [form for form in self._forms if mark in form.begins]
        if forms:
            yield from self._calls(forms, mark)
        elif mark in self._wrappers:
            self._out.switch(self._kind)

    def _switch(self, into: Kind) -> None:
        self._out.switch(into)
        self._kind = into

    def _unmarked(self) -> Reading[None]:
        """Calls that begin an answer without a marker."""
        forms = [form for form in self._forms if "" in form.begins]
        if not forms:
            return
        reader = self._reader
        reader.keep()
        try:
            first = yield from reader.skip_space()
        except EndOfText:
            first = ""
        space = reader.kept()
        reader.release()
        forms = [form for form in forms if first and first in form.first("")]
        if forms:
            yield from self._calls(forms, "", space)
        elif space:
            self._out.text(Content, space)

    def _calls(self, forms: list[Form], mark: str, before: str = "") -> Reading[None]:
        reader, out = self._reader, self._out
        calls, empty, is_broken = out.calls, False, False
        ends = {end for form in forms for end in form.ends(mark) if end}
        reader.keep(before + mark)
        try:
            empty = yield from self._read_end(ends if mark else set())
            if not empty:
                form = forms[0]
                if len(forms) > 1 or form.first(mark):
                    first = yield from reader.skip_space()
                    fitting = [f for f in forms if first in f.first(mark)] or [f for f in forms if not f.first(mark)]
                    form = fitting[0] if fitting else _mismatch()
                yield from form.read(reader, out, self._tools, mark)
            if out.calls == calls and (rest := reader.kept()):
                out.leave(rest)
        except Mismatch:
            if out.calls == calls:
                text = reader.kept()
                if text := text.removeprefix(mark) if mark in self._hidden else text:
                    out.text(self._kind, text)
                return
            is_broken = True
        except EndOfText:
            if out.calls == calls and not mark:
                out.text(self._kind, reader.kept())
                return
            if out.calls == calls:
                out.leave(reader.kept() + reader.text[reader.at :])
            out.after_call()
            raise
        finally:
            reader.release()
        out.after_call()
        self._kind, self._over = Content, False
        if is_broken:
            yield from self._skip(ends)
        elif empty and not out.calls:  # Llama 4's template puts both markers before calls
            yield from self._unmarked()

    def _read_end(self, ends: set[str]) -> Reading[bool]:
        """Whether there is nothing but whitespace between the markers of calls."""
        if not ends:
            return False
        yield from self._reader.skip_space()
        return bool((yield from self._reader.literal(*ends)))

    def _skip(self, ends: set[str]) -> Reading[None]:
        """Leaves out the rest of a call that is broken: up to its end, to another call, or all of it."""
        begins = {begin for form in self._forms for begin in form.begins}
        ends = {end for end in ends if not any(end in begin for begin in begins)}  # Command R's: ``` is in ```json
        mark = yield from self._reader.pieces(marker_set(*sorted(ends | begins)), _ignore)
        if mark in begins:
            self._reader.unread(mark)


def _ignore(_: str) -> None:
    pass


def _mismatch() -> Form:
    raise Mismatch
