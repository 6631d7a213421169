"""Grammars of requests, checked as the API checks them: in processes, which a test's process shares."""

import atexit
from collections.abc import Sequence
from functools import cache

from app.grammars.checker import GrammarCheck, GrammarChecker
from app.running.loop_thread import LoopThread


def check_all(checks: Sequence[GrammarCheck]) -> None:
    """Raises: RequestError."""
    thread, checker = _started()
    thread.call(checker.check(checks))


@cache
def _started() -> tuple[LoopThread, GrammarChecker]:
    checker = GrammarChecker()
    atexit.register(checker.close)
    return LoopThread("grammar-checks"), checker
