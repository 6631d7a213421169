"""The list of features: a file in `ops/docs/rows` for each theme, what is wrong with it, and how many rows are open.

A row says `what` there is, in its users' words, and how far: as `state` where no engine differs, else by engine.
`tests` are the node ids that prove it. A state is one of these words, `yes` or another one with a note behind a colon:

- `yes`: it works; a note is its limit.
- `no`: it can't be; the note is the reason that the engine, the package or the machine gives.
- `gpu`: it is written, and only a GPU can show it.
- `open`: it isn't there yet, or nobody has tried.
- `elsewhere`: another issue has it, which the note names.
"""

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ops.docs.collected import uncollected

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "rows"
ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "diffusers": "diffusers", "trtllm": "TensorRT-LLM", "mock": "mock"}
WORDS = ("yes", "no", "gpu", "open", "elsewhere")
_ALL = "state"
_NEEDS_NOTE = ("no", "elsewhere")
MORE_THAN_ONE = "more than one GPU"  # with which the note of what no single GPU shows begins


class State(NamedTuple):
    word: str
    note: str = ""


class Row(NamedTuple):
    what: str
    states: dict[str, State]  # by engine; "state": all alike
    tests: tuple[str, ...] = ()

    def of(self, engine: str) -> State | None:
        return self.states.get(engine, self.states.get(_ALL))

    @property
    def words(self) -> set[str]:
        return {state.word for state in self.states.values()}

    @property
    def is_open(self) -> bool:
        """True if a state is neither settled nor another issue's: needs a GPU, and no check of `make gpu` shows it."""
        on_gpu = any(test.startswith("tests/gpu/") for test in self.tests)
        return any(
            state.word == "open" or (state.word == "gpu" and not on_gpu and not state.note.startswith(MORE_THAN_ONE))
            for state in self.states.values()
        )


class Theme(NamedTuple):
    title: str
    rows: tuple[Row, ...]
    readme: str = ""  # its row in README's table, which themes of one text share; "": none


def themes() -> list[Theme]:
    return [_theme(tomllib.loads(path.read_text())) for path in sorted(FOLDER.glob("*.toml"))]


def _theme(text: dict[str, object]) -> Theme:
    rows = text["row"]
    assert isinstance(rows, list)
    return Theme(str(text["title"]), tuple(map(_row, rows)), str(text.get("readme", "")))


def _row(keys: dict[str, object]) -> Row:
    texts = {key: str(value) for key, value in keys.items() if key not in ("what", "tests")}
    tests = keys.get("tests", [])
    assert isinstance(tests, list)
    return Row(str(keys["what"]), {key: _state(text) for key, text in texts.items()}, tuple(map(str, tests)))


def _state(text: str) -> State:
    word, _, note = text.partition(":")
    return State(word.strip(), note.strip())


def rows_open(all_themes: Sequence[Theme]) -> list[str]:
    """The rows that are not whole yet, each behind its theme's title."""
    return [f"{theme.title}: {row.what}" for theme in all_themes for row in theme.rows if row.is_open]


def problems(all_themes: Sequence[Theme], root: Path = ROOT) -> list[str]:
    """Faults of the list: states that are none, what nothing proves, tests that are not collected."""
    texts = [row.what for theme in all_themes for row in theme.rows]
    twice = [f"{what}: is there twice" for what in sorted({what for what in texts if texts.count(what) > 1})]
    return twice + [problem for theme in all_themes for row in theme.rows for problem in _problems(row, root)]


def _problems(row: Row, root: Path) -> Iterator[str]:
    if not row.states or (_ALL in row.states and len(row.states) > 1):
        yield f"{row.what}: has a state, or states by engine"
    for engine, state in row.states.items():
        if engine not in (_ALL, *ENGINES):
            yield f"{row.what}: {engine} is no engine"
        if state.word not in WORDS:
            yield f"{row.what}: {state.word} is no state"
        if state.word in _NEEDS_NOTE and not state.note:
            yield f"{row.what}: {state.word} without its reason"
    if "yes" in row.words and not row.tests:
        yield f"{row.what}: no test proves it"
    for test in row.tests:
        if reason := uncollected(test, root):
            yield f"{row.what}: {test} {reason}"
