"""What is common to processes that compile grammars (`app/bounded/serving.py`)."""

from collections.abc import Callable

from app.bounded.serving import serve
from app.bounded.wire import Answer
from app.messages import Grammar, decode_grammar


def serve_checks(check: Callable[[Grammar], None], *, besides: bool = False) -> None:
    """Answers why a grammar is refused, or nothing. `check` raises ValueError; `besides`: as of `serve`."""

    def work(job: bytes, _data: bytes) -> Answer:
        try:
            check(decode_grammar(job))
        except ValueError as exc:
            return (str(exc) or "its grammar is not valid").encode(), []
        except (MemoryError, RecursionError):
            return b"compiling its grammar takes too much memory", []
        return b"", []

    serve(work, besides=besides)
