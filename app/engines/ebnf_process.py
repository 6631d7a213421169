"""A process that says whether xgrammar reads a grammar in EBNF, for an engine that doesn't say so itself."""

import xgrammar

from app.grammars.serving import serve_checks
from app.messages.job import Grammar


def read(grammar: Grammar) -> None:
    """Raises: ValueError that says what is wrong."""
    try:
        xgrammar.Grammar.from_ebnf(grammar.text)
    except RuntimeError as exc:
        raise ValueError(str(exc).strip().rpartition("parser error at ")[2]) from exc


if __name__ == "__main__":
    serve_checks(read, besides=True)
