"""The state of a run, in an SQLite file beside the output: which batches it has, and the answers so far.

It is written before and after each step, so that the same command goes on wherever it was killed.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple

import orjson

from app.cli.batch_run.answer_columns import Answer
from app.cli.batch_run.errors import RunError

_TABLES = """
CREATE TABLE IF NOT EXISTS run (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS parts (
    number INTEGER PRIMARY KEY, turn INTEGER, first INTEGER, last INTEGER, lines INTEGER, batch TEXT,
    ended INTEGER DEFAULT 0, prompt INTEGER DEFAULT 0, cached INTEGER DEFAULT 0, completion INTEGER DEFAULT 0
);
CREATE TABLE IF NOT EXISTS answers (
    row INTEGER PRIMARY KEY, turn INTEGER, error TEXT, again INTEGER, cut INTEGER, value BLOB
);
"""
NOTHING = Answer(0, {}, "not answered", again=True)


class JournalPart(NamedTuple):
    """Consecutive rows, or those of them that failed before, as one batch."""

    number: int
    turn: int  # 0: the first time; then how often its rows were tried before
    first: int  # row, from 1
    last: int
    lines: int
    batch: str | None = None  # None: it may not have been submitted
    ended: int = 0  # 1: its answers are here; 2: and its files are deleted


class Tokens(NamedTuple):
    prompt: int
    cached: int
    completion: int


class Journal:
    """One process has it at a time."""

    def __init__(self, path: Path) -> None:
        """Raises: RunError."""
        self.path = path
        try:
            self._db = sqlite3.connect(path, timeout=0, isolation_level=None)
            path.chmod(0o600)  # it has answers
            for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=NORMAL"):
                self._db.execute(f"PRAGMA {pragma}")
            self._db.execute("BEGIN EXCLUSIVE")
            self._db.execute("COMMIT")
            self._db.executescript(_TABLES)
        except sqlite3.OperationalError as exc:
            raise RunError(f"{path}: {exc}: is another `xylem batch run` at work on it?") from exc
        except (sqlite3.DatabaseError, OSError) as exc:
            raise RunError(f"{path} is no state of a run: {exc}") from exc

    def close(self) -> None:
        self._db.close()

    def remove(self) -> None:
        self._db.close()
        self.path.unlink()

    def value(self, name: str) -> str | None:
        row = self._db.execute("SELECT value FROM run WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def set_value(self, name: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO run VALUES (?, ?)", (name, value))

    def forget(self, name: str) -> None:
        self._db.execute("DELETE FROM run WHERE name = ?", (name,))

    @property
    def id(self) -> str:
        """Tells this run's batches from others'."""
        if self.value("id") is None:
            self.set_value("id", token_hex(8))
        return self.value("id") or ""

    def parts(self, turn: int | None = None) -> list[JournalPart]:
        columns = ", ".join(JournalPart._fields)
        rows = self._db.execute(f"SELECT {columns} FROM parts ORDER BY number")  # noqa: S608 (names of our own)
        parts = [JournalPart(*row) for row in rows]
        return [part for part in parts if turn in (None, part.turn)]

    def add(self, turn: int, first: int, last: int, lines: int) -> JournalPart:
        values = turn, first, last, lines
        number = self._db.execute("INSERT INTO parts (turn, first, last, lines) VALUES (?, ?, ?, ?)", values).lastrowid
        return JournalPart(number or 0, *values)

    def submitted(self, part: JournalPart, batch: str) -> None:
        self._db.execute("UPDATE parts SET batch = ? WHERE number = ?", (batch, part.number))

    def drop(self, part: JournalPart) -> None:
        self._db.execute("DELETE FROM parts WHERE number = ?", (part.number,))

    def ended(self, part: JournalPart, tokens: Tokens) -> None:
        values = (*tokens, part.number)
        self._db.execute("UPDATE parts SET ended = 1, prompt = ?, cached = ?, completion = ? WHERE number = ?", values)

    def cleared(self, part: JournalPart) -> None:
        self._db.execute("UPDATE parts SET ended = 2 WHERE number = ?", (part.number,))

    def answer(self, turn: int, answers: Iterable[Answer]) -> None:
        """Takes answers; those that are there already change nothing."""
        rows = (
            (one.row, turn, one.error, one.again, one.is_cut, orjson.dumps(one.values, default=str)) for one in answers
        )
        self._db.execute("BEGIN")
        try:
            self._db.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?)", rows)
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def answers(self, rows: Iterable[int]) -> Iterator[Answer]:
        """One for each row from 1 on, in order; rows without one have an error."""
        cursor = self._db.execute("SELECT row, error, again, cut, value FROM answers ORDER BY row")
        latest = next(cursor, None)
        for row in rows:
            while latest is not None and latest[0] < row:
                latest = next(cursor, None)
            if latest is None or latest[0] != row:
                yield NOTHING._replace(row=row)
            else:
                _, error, again, cut, value = latest
                yield Answer(row, orjson.loads(value), error, bool(again), bool(cut))

    def unanswered(self, part: JournalPart, reason: str, *, again: bool) -> None:
        """Notes the rows of a part that have no answer of its turn."""
        between = part.first, part.last
        if part.turn:
            query = "SELECT row FROM answers WHERE again AND turn < ? AND row BETWEEN ? AND ?"
            rows = {row for (row,) in self._db.execute(query, (part.turn, *between))}
        else:
            query = "SELECT row FROM answers WHERE row BETWEEN ? AND ?"
            rows = {*range(part.first, part.last + 1)} - {row for (row,) in self._db.execute(query, between)}
        self.answer(part.turn, (Answer(row, {}, reason, again=again) for row in sorted(rows)))

    def failures(self, turn: int) -> set[int]:
        """The rows to be tried in that turn: those that failed in the one before, and may do better."""
        return {row for (row,) in self._db.execute("SELECT row FROM answers WHERE again AND turn < ?", (turn,))}

    def try_all_again(self) -> None:
        """Gives the rows that have failed another chance, whatever the reason."""
        self._db.execute("UPDATE answers SET again = 1 WHERE error IS NOT NULL")

    @property
    def answers_so_far(self) -> int:
        """Number of rows that have one, failed ones too."""
        return self._count("1")

    @property
    def failed(self) -> int:
        return self._count("error IS NOT NULL")

    @property
    def cut(self) -> int:
        """Answers that ended at the most tokens that they might have."""
        return self._count("cut")

    @property
    def tokens(self) -> Tokens:
        sums = self._db.execute("SELECT total(prompt), total(cached), total(completion) FROM parts").fetchone()
        return Tokens(*map(int, sums))

    def _count(self, condition: str) -> int:
        (count,) = self._db.execute(f"SELECT count(*) FROM answers WHERE {condition}").fetchone()  # noqa: S608 (ours)
        return int(count)
