"""The list of features as docs/reference/features.md, and its summary, the table in README.md."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ops.docs.features import ENGINES, Row, State, Theme, themes

README = Path(__file__).parents[2] / "README.md"
_BEGINS, _ENDS = "<!-- From ops/docs/rows, by `make reference` -->\n", " <!-- end -->\n"
_SIGNS = {"yes": "✓", "no": "✗", "gpu": "needs a GPU", "open": "open", "elsewhere": "another issue"}
_COLUMNS = {"vllm": "vLLM", "sglang": "SGLang", "mock": "mock (a simulator)"}
_PAINTERS = {"vllm": "diffusers"}  # what paints where the other engine answers


def page() -> str:
    """Text behind the mark of docs/reference/features.md."""
    all_themes = themes()
    counts = Counter(_standing(row) for theme in all_themes for row in theme.rows)
    total = ", ".join(f"{counts[word]} {text}" for word, text in _TOTALS.items() if counts[word])
    parts = [f"{counts.total()} rows: {total}."]
    for theme in all_themes:
        rows = [(row.what, _states(row), ", ".join(f"`{test}`" for test in row.tests)) for row in theme.rows]
        parts.append(f"## {theme.title}\n\n{_table(('feature', 'state', 'proven by'), rows)}")
    return "\n\n".join(parts)


_TOTALS = {
    "yes": "work on each engine that they are for",
    "partly": "on some engines",
    "no": "can't be",
    "gpu": "wait for a GPU",
    "open": "are open",
    "elsewhere": "belong to another issue",
}


def _standing(row: Row) -> str:
    """The one word for a row whose engines differ."""
    if row.is_open or "open" in row.words:
        return "open"
    if len(row.words) == 1:
        return next(iter(row.words))
    return "partly" if "yes" in row.words else "gpu" if "gpu" in row.words else "no"


def _states(row: Row) -> str:
    """Engines of one state stand together; "✓" alone is of all."""
    by_state = {
        state: [name for name, of_one in row.states.items() if of_one == state] for state in row.states.values()
    }
    return "; ".join(
        " ".join([", ".join(ENGINES[name] for name in names if name in ENGINES), _shown(state)]).strip()
        for state, names in by_state.items()
    )


def _shown(state: State) -> str:
    return f"{_SIGNS[state.word]} ({state.note})" if state.note else _SIGNS[state.word]


def readme() -> str:
    """README.md with the table as the rows have it."""
    before, _, rest = README.read_text().partition(_BEGINS)
    _, end, after = rest.partition(_ENDS)
    assert end, "README.md has no mark behind its table"
    return f"{before}{_BEGINS}\n{summary(themes())}\n{_ENDS}{after}"


def summary(all_themes: Sequence[Theme]) -> str:
    """A row for themes of one text in README: of their features, how many work on each engine."""
    texts = dict.fromkeys(theme.readme for theme in all_themes if theme.readme)
    rows = []
    for text in texts:
        features = [row for theme in all_themes if theme.readme == text for row in theme.rows]
        rows.append((text, *(_works(features, engine) for engine in _COLUMNS)))
    return _table(("", *_COLUMNS.values()), rows)


def _works(rows: Sequence[Row], engine: str) -> str:
    engines = [engine, _PAINTERS.get(engine, engine)]
    states = [next((state for name in engines if (state := row.of(name))), None) for row in rows]
    words = [state.word for state in states if state and state.word != "elsewhere"]
    works = words.count("yes")
    if not works:
        return "–"
    return "✓" if works == len(words) else f"◐ {works} of {len(words)}"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
