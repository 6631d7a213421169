"""Runs a table's requests: cuts parts, submits them, collects their answers, and tries failed rows again."""

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from app.batch.input_line import MAX_LINES
from app.cli.batch_run.answer_columns import Answer, AnswerColumns
from app.cli.batch_run.batch_service import ENDED, BatchService
from app.cli.batch_run.errors import RunError
from app.cli.batch_run.journal import Journal, JournalPart, Tokens
from app.cli.batch_run.part_files import PartFile, part_files
from app.cli.batch_run.request_lines import RequestLines
from app.cli.batch_run.table_input import Table
from app.cli.client import ApiError

_POLL_S = 1.0
_AT_ONCE = 8  # unfinished batches: files of more would wait in the server's storage
_ANSWERS = 2000  # that are written at once
_PART_BYTES = 190 * 2**20  # XYLEM_MAX_FILE is 200 MiB, unless the server says otherwise
_TOO_LARGE = 413


class Progress(NamedTuple):
    """The state of all batches together."""

    answered: int
    failed: int
    tokens: Tokens


class BatchRun:
    def __init__(
        self, service: BatchService, journal: Journal, source: Table, lines: RequestLines, columns: AnswerColumns
    ) -> None:
        self._service, self._journal, self._source = service, journal, source
        self._lines, self._columns = lines, columns
        self.most_lines, self.most_bytes, self.poll_s = MAX_LINES, _PART_BYTES, _POLL_S

    def go(self, window: str, retries: int, show: Callable[[Progress], None]) -> None:
        """Returns when each row has an answer, or a failure that is not tried again.

        Raises: RunError, RunStopped, ApiError, KeyboardInterrupt; all of them leave a state from which it goes on.
        """
        self._recover()
        first = self._first_turn()
        for turn in range(first, first + 1 + retries):
            if turn == first or self._journal.failures(turn):
                self._take_turn(turn, window, show)
        self._journal.set_value("done", str(first + retries))

    def rows(self) -> Iterator[dict[str, Any]]:
        """The input's rows in their order, each with its answer. Raises: RunError."""
        numbers = iter(range(1, 2**62))
        for row, answer in zip(self._source.rows(), self._journal.answers(numbers), strict=False):
            yield self._columns.merged(row, answer)

    def _first_turn(self) -> int:
        """Rows that failed for good in a run that has ended before get new tries."""
        last_turn = self._journal.value("done")
        if last_turn is not None:
            self._journal.try_all_again()
            self._journal.set_value("first", str(int(last_turn) + 1))
            self._journal.forget("done")
        return int(self._journal.value("first") or 0)

    def _take_turn(self, turn: int, window: str, show: Callable[[Progress], None]) -> None:
        files = self._files(turn)
        more = True
        while True:
            live = [part for part in self._journal.parts() if not part.ended]
            while more and len(live) < _AT_ONCE:
                try:
                    file = next(files, None)
                    more = file is not None
                    if file is not None:
                        live.append(self._submit(turn, file, window))
                except ApiError as exc:
                    if exc.status != _TOO_LARGE or file is None or file.lines == 1:
                        raise
                    self.most_bytes = max(1, _size(file) // 2)
                    files = self._files(turn)
            states = [(part, self._service.batch(part.batch or "")) for part in live]
            show(self._progress(states))
            for part, state in states:
                if state["status"] in ENDED:
                    self._collect(part, state)
            if not more and all(state["status"] in ENDED for _, state in states):
                return
            time.sleep(self.poll_s)

    def _recover(self) -> None:
        """Finishes what an earlier process was killed amid: a part's submission, or the deletion of its files."""
        for part in self._journal.parts():
            if part.ended == 1:
                self._clear(part, self._service.batch(part.batch or ""))
            elif part.batch is None:
                label = self._label(part)
                if batch := self._service.submitted(label, self._began):
                    self._journal.submitted(part, batch)
                else:
                    self._service.drop_uploads(label)
                    self._journal.drop(part)  # its rows come next

    def _files(self, turn: int) -> Iterator[PartFile]:
        """The files that are not submitted yet."""
        after = max((part.last for part in self._journal.parts(turn)), default=0)
        rows = enumerate(self._source.rows(), 1)
        failures = None if turn == 0 else self._journal.failures(turn)
        lines = (
            (number, self._lines.line(number, row))
            for number, row in rows
            if number > after and (failures is None or number in failures)
        )
        return part_files(lines, self._journal.path.parent, self.most_lines, self.most_bytes)

    def _submit(self, turn: int, file: PartFile, window: str) -> JournalPart:
        """Raises: ApiError, RunStopped: nothing was submitted."""
        part = self._journal.add(turn, file.first, file.last, file.lines)
        order = {"endpoint": self._lines.endpoint, "completion_window": window}
        try:
            batch = self._service.submit(self._label(part), file.content, order, self._began)
        except ApiError:
            self._journal.drop(part)
            raise
        self._journal.submitted(part, batch)
        return part._replace(batch=batch)

    def _collect(self, part: JournalPart, state: dict[str, Any]) -> None:
        """Takes a batch's answers; then its files are deleted."""
        for file in filter(None, (state["output_file_id"], state["error_file_id"])):
            self._service.patiently(partial(self._take, part, file))
        if state["status"] == "failed":
            problems = (state["errors"] or {}).get("data") or [{"message": "its batch failed"}]
            self._journal.unanswered(part, problems[0]["message"], again=True)
        else:
            self._journal.unanswered(
                part, f"its batch {state['status']} without it", again=state["status"] == "expired"
            )
        self._journal.ended(part, _tokens(state))
        self._clear(part, state)

    def _clear(self, part: JournalPart, state: dict[str, Any]) -> None:
        for name in ("output_file_id", "error_file_id", "input_file_id"):
            self._service.delete(state[name])
        self._journal.cleared(part)

    def _take(self, part: JournalPart, file: str) -> None:
        answers: list[Answer] = []
        for line in self._service.lines(file):
            if answer := self._columns.read(line):
                answers.append(answer)
            if len(answers) == _ANSWERS:
                self._journal.answer(part.turn, answers)
                answers.clear()
        self._journal.answer(part.turn, answers)

    def _progress(self, states: Iterable[tuple[JournalPart, dict[str, Any]]]) -> Progress:
        answers, failures, tokens = self._journal.answers_so_far, self._journal.failed, self._journal.tokens
        for part, state in states:
            counts = state["request_counts"]
            if part.turn:  # its rows are counted, as failed ones
                failures -= counts["completed"]
            else:
                answers, failures = answers + counts["completed"] + counts["failed"], failures + counts["failed"]
            tokens = Tokens(*(one + other for one, other in zip(tokens, _tokens(state), strict=True)))
        return Progress(answers, failures, tokens)

    def _label(self, part: JournalPart) -> str:
        return f"{self._journal.id}/{part.number}"

    @property
    def _began(self) -> float:
        return float(self._journal.value("began") or 0)


def begin(path: Path, fingerprint: str, now: float) -> Journal:
    """The state of a run: a new one, or the one that was begun with the same input and options. Raises: RunError."""
    journal = Journal(path)
    before = journal.value("fingerprint")
    if before is None:
        journal.set_value("began", str(now))
        journal.set_value("fingerprint", fingerprint)
    elif before != fingerprint:
        journal.close()
        raise RunError(f"{path} is of another input or of other options. Remove it to begin anew; its batches go on")
    return journal


def _tokens(state: dict[str, Any]) -> Tokens:
    usage = state["usage"]
    return Tokens(usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"])


def _size(file: PartFile) -> int:
    return file.content.seek(0, 2)
