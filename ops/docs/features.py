"""The README's table of features, from `features.toml`: ✓, ◐ or –, with numbered notes below it."""

import tomllib
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
_ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "mock": "mock (a simulator)"}
_BEGINS, _ENDS = "<!-- From ops/docs/features.toml, by `make reference` -->\n", " <!-- end -->\n"
_SIGNS = {("yes", False): "✓", ("yes", True): "◐", ("no", False): "–", ("no", True): "–"}


def readme() -> str:
    """README.md with the table as the features have it."""
    before, _, rest = README.read_text().partition(_BEGINS)
    _, end, after = rest.partition(_ENDS)
    assert end, "README.md has no mark behind its table"
    return f"{before}{_BEGINS}\n{table()}{_ENDS}{after}"


def table() -> str:
    features = tomllib.loads((Path(__file__).parent / "features.toml").read_text())["feature"]
    notes: dict[str, int] = {}

    def cell(text: str) -> str:
        has, _, note = text.partition(": ")
        sign = _SIGNS[has, bool(note)]
        return f"{sign} {notes.setdefault(note, len(notes) + 1)}" if note else sign

    rows = [[one["what"], *(cell(one[engine]) for engine in _ENGINES)] for one in features]
    lines = [["", *_ENGINES.values()], ["---"] * (len(_ENGINES) + 1), *rows]
    texts = "; ".join(f"**{number}** {note}" for note, number in notes.items())
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{texts}."
