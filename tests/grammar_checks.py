"""Grammars of requests, checked as the API checks them: in processes, which a test's process shares."""

from collections.abc import Sequence
from functools import cache

from app.grammars.checker import GrammarCheck, GrammarChecker
from app.loop_thread import LoopThread


def check_all(checks: Sequence[GrammarCheck]) -> None:
    """Raises: RequestError."""
    thread, checker = _started()
    thread.call(checker.check(checks))


@cache
def _started() -> tuple[LoopThread, GrammarChecker]:
    return LoopThread("grammar-checks"), GrammarChecker()
