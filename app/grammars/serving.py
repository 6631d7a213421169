"""The common part of processes that compile grammars (`app/bounded/serving.py`)."""

from collections.abc import Callable

from app.bounded.serving import serve
from app.bounded.wire import Answer
from app.grammars.verdict import Verdict
from app.messages.job import Grammar, decode_grammar
from app.messages.wire import encode


def serve_checks(check: Callable[[Grammar], Grammar | None], *, besides: bool = False) -> None:
    """`check` raises ValueError, or returns a grammar for the engine, None for the one that it got.

    `besides`: as of `serve`.
    """

    def work(job: bytes, _data: bytes) -> Answer:
        return encode(_verdict(decode_grammar(job), check)), []

    serve(work, besides=besides)


def _verdict(grammar: Grammar, check: Callable[[Grammar], Grammar | None]) -> Verdict:
    try:
        result = check(grammar)
    except ValueError as exc:
        return Verdict(str(exc) or "its grammar is not valid")
    except (MemoryError, RecursionError):
        return Verdict("compiling its grammar takes too much memory")
    return Verdict(instead=None if result == grammar else result)
