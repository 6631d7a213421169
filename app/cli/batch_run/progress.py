"""Shows how far a run is: rows, failures, tokens a second, and the cost so far."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from app.cli.batch_run.batch_run import Progress
from app.cli.batch_run.journal import Tokens
from app.cli.report import err
from app.tenants.cost import Used, cost
from app.tenants.records import Price

_QUIET_S = 30.0  # between two lines where there is no terminal
_STILL_S = 60.0  # without a row
_STILL = "No row for a minute: other requests come first, a limit or budget is used up, or no batch worker runs"


def money(price: Price | None, tokens: Tokens) -> str:
    """The cost as text; '' without a price."""
    if price is None:
        return ""
    return f", {cost(Used('', *tokens), price).money:,.4f} in money"


class _Moves:
    """Tells once when nothing moves."""

    def __init__(self) -> None:
        self._rows, self._since, self._is_told = -1, time.monotonic(), False

    def look(self, rows: int) -> None:
        now = time.monotonic()
        if rows != self._rows:
            self._rows, self._since, self._is_told = rows, now, False
        elif now - self._since > _STILL_S and not self._is_told:
            self._is_told = True
            err.print(_STILL, markup=False, soft_wrap=True)


@contextmanager
def shown(count: int, price: Price | None) -> Iterator[Callable[[Progress], None]]:
    """`count`: rows in all."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    texts = TextColumn("{task.fields[failed]} failed"), TextColumn("{task.fields[rate]}")
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *texts, TimeRemainingColumn()
    began, before, latest, moves = time.monotonic(), None, time.monotonic(), _Moves()
    with Bar(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("answering", total=count, failed=0, rate="")

        def show(state: Progress) -> None:
            nonlocal before, latest
            before = state.tokens.completion if before is None else before
            passed_s = max(1.0, time.monotonic() - began)
            rate = f"{(state.tokens.completion - before) / passed_s:.0f} tokens/s{money(price, state.tokens)}"
            moves.look(state.answered)
            bar.update(task, completed=state.answered, failed=state.failed, rate=rate)
            if not err.is_terminal and time.monotonic() - latest >= _QUIET_S:
                latest = time.monotonic()
                duration = timedelta(seconds=round(passed_s))
                line = f"{duration}: {state.answered:,} of {count:,} rows, {state.failed:,} failed; {rate}"
                err.print(line, markup=False, soft_wrap=True)

        yield show
