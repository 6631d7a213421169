"""Usage in SQL: SQLite or PostgreSQL. All methods block, and raise UsageDown."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Select,
    case,
    create_engine,
    event,
    func,
    insert,
    inspect,
    literal_column,
    make_url,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from app.errors import REFUSED, RequestError, SettingsError, UsageDown
from app.tenants.cost import cost, price_of
from app.tenants.records import Price
from app.usage.query import SUMS, WIDTHS, UsageQuery, iso
from app.usage.record import UsageRecord, latest
from app.usage.tables import SCHEMA, TABLES, USAGE, VERSION

COLUMNS = {column.name: column.type.python_type for column in USAGE.columns}
_PAGE = 5000  # records that are read at once
_BUSY_S = 30
_STEPS = 100_000  # of SQLite, between two looks at the time: some milliseconds
_IS_REFUSED = USAGE.c.outcome.in_(sorted(REFUSED))
_CANCELLED = "57014"  # PostgreSQL's state of a statement that took too long


class UsageDatabase:
    """Thread-safe."""

    def __init__(self, url: str) -> None:
        """Raises: SettingsError."""
        try:
            sql_url = make_url(url)
            if sql_url.drivername == "postgresql":
                sql_url = sql_url.set(drivername="postgresql+psycopg")
            is_file = sql_url.get_backend_name() == "sqlite"
            self._folder = Path(sql_url.database).parent if is_file and sql_url.database else None
            options: dict[str, Any] = {"connect_args": {"timeout": _BUSY_S}} if is_file else {"pool_pre_ping": True}
            self._engine = create_engine(sql_url, pool_size=2, **options)
        except ImportError as exc:
            raise SettingsError(f"XYLEM_USAGE_URL needs pip install 'xylem-serve[postgresql]' ({exc})") from exc
        except SQLAlchemyError as exc:
            raise SettingsError(f"XYLEM_USAGE_URL: {_described(exc)}") from exc
        self.shown = sql_url.render_as_string(hide_password=True)
        if is_file:
            event.listen(self._engine, "connect", _prepare_file)

    def close(self) -> None:
        self._engine.dispose()

    def create(self) -> None:
        """Makes the tables, if they aren't there. Raises: SettingsError, for those of another version; OSError."""
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        with self._begun() as sql:
            TABLES.create_all(sql)
            version = sql.scalar(select(SCHEMA.c.version))
            if version is None:
                sql.execute(insert(SCHEMA).values(version=VERSION))
            elif version != VERSION:
                raise SettingsError(
                    f"{self.shown} has usage in version {version} of its tables, and this is {VERSION}: take the "
                    "version of Xylem that wrote it, or another database"
                )

    def write(self, records: Sequence[UsageRecord], prices: Mapping[str, Price]) -> None:
        """All or none. Of what is there already, a record of a higher epoch replaces one of a lower."""
        rows = [
            msgspec.structs.asdict(record)
            | {"minute": int(record.at // 60), "cost": cost(record.used, price_of(prices, record.used)).money}
            for record in latest(records)
        ]
        if not rows:
            return
        dialect: Any = sqlite if self._engine.dialect.name == "sqlite" else postgresql
        put = dialect.insert(USAGE)
        updates = {name: put.excluded[name] for name in COLUMNS if name != "id"}
        put = put.on_conflict_do_update(
            index_elements=[USAGE.c.id], set_=updates, where=put.excluded.epoch > USAGE.c.epoch
        )
        with self._begun() as sql:
            sql.execute(put, rows)

    def grouped(self, query: UsageQuery, most: int, within_s: float | None = None) -> list[dict[str, Any]]:
        """A row for each group, with the sums of `SUMS`. Raises: RequestError if there are more, or it takes longer."""
        groups, columns = _groups(query)
        sums = [_count(~_IS_REFUSED).label("requests"), _count(_IS_REFUSED).label("refused")]
        sums += [func.sum(USAGE.c[name]).label(name) for name in SUMS if name in USAGE.c]
        key_names = [func.max(USAGE.c.key_name).label("key_name")] if "key" in query.by else []
        table = _selected(select(*columns, *key_names, *sums), query).group_by(*groups).limit(most + 1).subquery()
        statement = select(table).order_by(*(table.c[name] for name in query.by))  # of no more rows than are shown
        with self._begun() if within_s is None else self._bounded(within_s) as sql:
            result = sql.execute(statement)
            names = [*map(str, result.keys())]  # SQLAlchemy's own kind of text is no key of JSON
            rows = [dict(zip(names, row, strict=True)) for row in result]
        if len(rows) > most:
            raise RequestError(f"There are more than {most} rows: ask for a shorter time, or for fewer groups.")
        if not query.by and rows[0]["requests"] is None:
            return []
        return [_row(row, query) for row in rows]

    def records(self, query: UsageQuery) -> Iterator[list[dict[str, Any]]]:
        """Each record alone, in pages, the oldest first. `by` doesn't count."""
        statement = _selected(select(USAGE), query).order_by(USAGE.c.at, USAGE.c.id)
        with self._begun() as sql:
            result = sql.execution_options(yield_per=_PAGE).execute(statement)
            for page in result.mappings().partitions():
                yield [dict(row) for row in page]

    @contextmanager
    def _begun(self) -> Iterator[Connection]:
        """A transaction."""
        try:
            with self._engine.begin() as sql:
                yield sql
        except SQLAlchemyError as exc:
            if not self._has_tables():
                raise UsageDown(
                    f"{self.shown} has no usage yet. It is written where clients need keys, or with XYLEM_USAGE=true, "
                    "by `xylem up` or `xylem usage write`."
                ) from exc
            raise UsageDown(f"{self.shown}: {_described(exc)}") from exc

    @contextmanager
    def _bounded(self, within_s: float) -> Iterator[Connection]:
        """A transaction that the database ends when its time is over. Raises: RequestError."""
        end, is_over = time.monotonic() + within_s, False

        def look() -> bool:
            nonlocal is_over
            is_over = time.monotonic() > end
            return is_over

        try:
            with self._begun() as sql:
                if self._engine.dialect.name == "sqlite":
                    own: Any = sql.connection.driver_connection
                    own.set_progress_handler(look, _STEPS)
                    try:
                        yield sql
                    finally:
                        own.set_progress_handler(None, 0)
                else:
                    sql.execute(text(f"SET LOCAL statement_timeout = {round(within_s * 1000)}"))
                    yield sql
        except UsageDown as exc:
            if is_over or getattr(getattr(exc.__cause__, "orig", None), "sqlstate", "") == _CANCELLED:
                raise RequestError(
                    f"It takes more than {within_s:g} s (XYLEM_USAGE_REPORT_S): ask for a shorter time, or for "
                    "fewer groups."
                ) from exc
            raise

    def _has_tables(self) -> bool:
        try:
            return bool(inspect(self._engine).has_table(USAGE.name))
        except SQLAlchemyError:
            return True  # nobody knows


def _prepare_file(connection: Any, _record: Any) -> None:
    """Readers don't wait for the writer."""
    connection.execute("PRAGMA journal_mode=WAL")


def _selected(statement: Select[Any], query: UsageQuery) -> Select[Any]:
    statement = statement.where(USAGE.c.at >= query.since, USAGE.c.at < query.until)
    for name, values in (
        ("tenant", query.tenants),
        ("key", query.keys),
        ("model", query.models),
        ("task", query.tasks),
    ):
        if values:
            statement = statement.where(USAGE.c[name].in_(values))
    if query.batch is not None:
        statement = statement.where(USAGE.c.batch != "" if query.batch else USAGE.c.batch == "")
    return statement


def _count(condition: ColumnElement[bool]) -> Any:
    """None of no rows."""
    return func.sum(case((condition, 1), else_=0))


def _groups(query: UsageQuery) -> tuple[list[Any], list[Any]]:
    """Expressions to group by, and the same with their labels."""
    groups = [
        USAGE.c.minute // literal_column(str(WIDTHS[name] // 60), Integer) if name in WIDTHS else USAGE.c[name]
        for name in query.by
    ]
    return groups, [group.label(name) for name, group in zip(query.by, groups, strict=True)]


def _row(row: dict[str, Any], query: UsageQuery) -> dict[str, Any]:
    """Times as text, and numbers as Python has them: PostgreSQL sums integers as decimals."""
    for group in query.by:
        if group in WIDTHS:
            row[group] = iso(row[group] * WIDTHS[group])
    for name, kind in SUMS.items():
        row[name] = round(float(row[name]), 9) if kind is float else int(row[name])
    return row


def _described(exc: SQLAlchemyError) -> str:
    """Describes an error without the statement, whose values are a tenant's."""
    return str(getattr(exc, "orig", None) or exc).partition("\n")[0]
