"""Carries out a run: what is checked before anything is sent, the batches, the table at the end."""

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import typer

from app.batch.input_line import ENDPOINTS
from app.cli.batch_run.answer_columns import AnswerColumns
from app.cli.batch_run.batch_run import BatchRun, begin
from app.cli.batch_run.batch_service import BatchService
from app.cli.batch_run.column import Row
from app.cli.batch_run.errors import RunError
from app.cli.batch_run.estimate import Sample, estimated, sampled
from app.cli.batch_run.journal import Journal, Tokens
from app.cli.batch_run.progress import money, shown
from app.cli.batch_run.request_lines import RequestLines
from app.cli.batch_run.table_input import Table
from app.cli.batch_run.table_output import check_output, write_table
from app.cli.report import err
from app.endpoints import ROWS
from app.tenants.records import Price

_ROW_OF = {row.path: row for row in ROWS if row.path in ENDPOINTS}
_STATE = ".run"  # behind the output's name: the file with the state


class Work(NamedTuple):
    source: Table
    lines: RequestLines
    columns: AnswerColumns
    output: Path


def estimate(work: Work, client: Any) -> None:
    """Raises: RunError, RunStopped, ApiError."""
    count, sample = _checked(work)
    service = BatchService(client)
    price = _price(service, work.lines)
    figures = estimated(service, work.lines, count, sample)
    cost = money(price, Tokens(figures.prompt, 0, figures.completion))
    how, duration = "at most" if figures.is_most else "about", timedelta(seconds=round(figures.seconds))
    tokens = f"about {figures.prompt:,} + {figures.completion:,} tokens"
    typer.echo(f"{count:,} rows: {tokens}{cost}; {how} {duration}, judged by {figures.basis}")


def execute(work: Work, client: Any, window: str, retries: int, *, overwrite: bool) -> None:
    """Ends with code 1 if a row has no answer. Raises: RunError, RunStopped, ApiError, KeyboardInterrupt."""
    state = work.output.with_name(work.output.name + _STATE)
    if work.output.exists() and not state.exists() and not overwrite:
        raise RunError(f"{work.output} is there already: --overwrite replaces it")
    count, _ = _checked(work)
    service = BatchService(client)
    price = _price(service, work.lines)
    journal = begin(state, _fingerprint(work), time.time())
    try:
        batches = BatchRun(service, journal, work.source, work.lines, work.columns)
        with shown(count, price) as show:
            batches.go(window, retries, show)
        write_table(work.output, work.source, work.columns.columns, batches.rows())
        _finish(work.output, count, journal, price)
    finally:
        journal.close()


def _finish(output: Path, count: int, journal: Journal, price: Price | None) -> None:
    tokens, failures, cut = journal.tokens, journal.failed, journal.cut
    sums = f"{tokens.prompt:,} + {tokens.completion:,} tokens{money(price, tokens)}"
    err.print(f"{output}: {count:,} rows, {failures:,} failed; {sums}", markup=False, soft_wrap=True)
    if cut:
        err.print(f"{cut:,} answers were cut at their most tokens: --max-tokens", markup=False, soft_wrap=True)
    if not failures:
        journal.remove()
        return
    hint = f"The column error says why. The same command tries them again; {journal.path} has the others' answers"
    err.print(hint, markup=False, soft_wrap=True)
    raise typer.Exit(1)


def _checked(work: Work) -> tuple[int, Sample]:
    """The number of rows, and some of them. Each row's line can be made. Raises: RunError."""
    check_output(work.output)
    work.columns.check(work.source.columns)
    count, sample = sampled(_rows(work))
    if not count:
        raise RunError(f"{work.source.path} has no rows")
    return count, sample


def _rows(work: Work) -> Iterator[Row]:
    for number, row in enumerate(work.source.rows(), 1):
        work.lines.line(number, row)
        yield row


def _price(service: BatchService, lines: RequestLines) -> Price | None:
    """The price of the model, which has to be served at that endpoint. Raises: ApiError, RunError."""
    card, row = service.model(lines.model), _ROW_OF[lines.endpoint]
    limits = [pool["endpoints"] for pool in card.get("pools", ())]
    is_served = not limits or any(names is None or row.name in names for names in limits)
    if card["task"] != row.task or not is_served:
        raise RunError(f"the model '{lines.model}' is not served at {lines.endpoint}")
    return None if (price := card.get("price")) is None else Price(**price)


def _fingerprint(work: Work) -> str:
    return repr((work.source.digest(), *work.lines.shape, [column.name for column in work.columns.columns]))
