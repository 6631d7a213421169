"""A process that compiles with outlines what engines will, as `xgrammar_process.py` does."""

import json
import re
from contextlib import suppress

import outlines_core  # type: ignore[import-untyped]
from outlines_core.json_schema import build_regex_from_schema  # type: ignore[import-untyped]

from app.grammars.serving import serve_checks
from app.messages.job import Grammar

_LETTERS = outlines_core.Vocabulary(256, {bytes([byte]): [byte] for byte in range(256)})


def _check(grammar: Grammar) -> None:
    with suppress(ValueError, TypeError):  # what it refuses, the engine refuses itself
        match grammar.kind:
            case "json":
                pattern = build_regex_from_schema(grammar.text)
            case "choice":
                pattern = "|".join(map(re.escape, json.loads(grammar.text)))
            case _:
                pattern = grammar.text
        outlines_core.Index(pattern, _LETTERS)


if __name__ == "__main__":
    serve_checks(_check, besides=True)
