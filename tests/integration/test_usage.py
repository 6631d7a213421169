"""Records of usage: into Redis, from there into SQL, and what reports say; over a real Redis, SQLite and PostgreSQL."""

import asyncio
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet
import pytest
from redis.asyncio import Redis

from app.api.operations.reports import Reports
from app.errors import RateLimited, RequestError, SettingsError, StoreDown, UsageDown
from app.keys import Keys
from app.messages.wire import encode
from app.store import Wire
from app.tenants.records import Price
from app.usage import database as usage_database
from app.usage import outbox as outboxes
from app.usage.database import COLUMNS, UsageDatabase
from app.usage.export import write_parquet
from app.usage.outbox import UsageOutbox
from app.usage.query import UsageQuery
from app.usage.record import UsageRecord, decode_usage
from tests.background import beside, until
from tests.postgres import postgres
from tests.stack import ROOT
from tests.unit.test_usage import record
from workers.usage.writer import UsageWriter

KEYS = Keys("xylem")
ALL = UsageQuery(0, 2**40)


@pytest.fixture(scope="module")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with postgres(tmp_path_factory.mktemp("sql")) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[UsageDatabase]:
    if request.param == "sqlite":
        usage_db = UsageDatabase(f"sqlite:///{tmp_path / 'usage.sqlite'}")
    else:
        usage_db = UsageDatabase(request.getfixturevalue("postgres_url"))
        with usage_db._begun() as sql:
            sql.exec_driver_sql("DROP TABLE IF EXISTS xylem_usage, xylem_usage_schema")
    usage_db.create()
    yield usage_db
    usage_db.close()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[UsageDatabase]:
    usage_db = UsageDatabase(f"sqlite:///{tmp_path / 'usage.sqlite'}")
    usage_db.create()
    yield usage_db
    usage_db.close()


def rows(database: UsageDatabase, query: UsageQuery = ALL) -> list[dict[str, Any]]:
    return [row for page in database.records(query) for row in page]


async def streamed(redis: "Redis") -> list[UsageRecord]:
    entries = await redis.xrange(KEYS.usage())
    return [one for _, fields in entries for one in decode_usage(fields[b"b"])]


def test_what_is_written_is_read_as_it_was(database: UsageDatabase) -> None:
    usage_record = record("r", model="tuned", parent="m", images=2, engine_s=0.5, ttft_s=0.25, batch="batch_1")
    database.write([usage_record], {"m": Price(1e6, 0.5e6, 2e6)})
    (row,) = rows(database)
    assert row == msgspec.structs.asdict(usage_record) | {"minute": 16, "cost": 6 + 2 + 10}


def test_a_record_that_comes_again_is_written_once(database: UsageDatabase) -> None:
    database.write([record("a"), record("b"), record("a")], {})
    database.write([record("b", prompt_tokens=99)], {"m": Price(1.0)})
    assert [(r["id"], r["prompt_tokens"], r["cost"]) for r in rows(database)] == [("a", 10, 0.0), ("b", 10, 0.0)]


def test_of_a_request_that_another_replica_took_over_its_record_counts(database: UsageDatabase) -> None:
    """Whichever of both is written first."""
    first, second = record("a", outcome="cancelled", completion_tokens=2), record("a", 1, completion_tokens=9)
    for order in ([first, second], [second, first]):
        for each in order:
            database.write([each], {})
        assert [(r["epoch"], r["outcome"], r["completion_tokens"]) for r in rows(database)] == [(1, "ok", 9)]


def test_sums_are_by_what_is_asked_for(database: UsageDatabase) -> None:
    day = 86_400
    at = {"a": 10.0, "b": 3700.0, "c": day + 1.0, "d": day + 2.0}
    for name, tenant in (("a", "x"), ("b", "x"), ("c", "y"), ("d", "x")):
        database.write([msgspec.structs.replace(record(name, tenant=tenant), at=at[name])], {"m": Price(1e6)})

    def asked(*by: Any, since: float = 0, until: float = 2 * day, **only: Any) -> list[tuple[Any, ...]]:
        groups = database.grouped(UsageQuery(since, until, by, **only), 100)
        return [(*(row[name] for name in by), row["requests"], row["cost"]) for row in groups]

    assert asked() == [(4, 40.0)]
    assert asked("tenant") == [("x", 3, 30.0), ("y", 1, 10.0)]
    assert asked("day") == [("1970-01-01T00:00:00Z", 2, 20.0), ("1970-01-02T00:00:00Z", 2, 20.0)]
    assert asked("hour", tenants=["x"])[:2] == [("1970-01-01T00:00:00Z", 1, 10.0), ("1970-01-01T01:00:00Z", 1, 10.0)]
    assert asked("tenant", since=10, until=day) == [("x", 2, 20.0)]
    assert asked(since=10.5, until=11) == []
    assert asked(batch=True) == []
    (row,) = database.grouped(UsageQuery(0, day, ("key",)), 100)
    assert row == {
        "key": "k", "key_name": "name", "requests": 2, "refused": 0, "prompt_tokens": 20, "cached_tokens": 8,
        "completion_tokens": 10, "images": 0, "engine_s": 0.0, "cost": 20.0,
    }  # fmt: skip
    for name, outcome in (("e", "rate_limit_exceeded"), ("f", "worker_lost")):
        database.write([msgspec.structs.replace(record(name, tenant="z"), at=5.0, outcome=outcome)], {})
    (row,) = database.grouped(UsageQuery(0, day, tenants=["z"]), 100)
    assert (row["requests"], row["refused"]) == (1, 1), "what was refused is counted apart, and what failed is not"
    with pytest.raises(RequestError, match="more than 1 rows"):
        database.grouped(UsageQuery(0, 2 * day, ("tenant",)), 1)


def test_a_report_that_takes_too_long_is_ended_by_the_database(
    database: UsageDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection serves the next one."""
    monkeypatch.setattr(usage_database, "_STEPS", 100)
    database.write([msgspec.structs.replace(record(f"r{i}"), at=60.0 * i) for i in range(20_000)], {})
    wide = UsageQuery(0, 1e9, ("tenant", "key", "model", "minute"))
    with pytest.raises(RequestError, match=r"takes more than 0.001 s \(XYLEM_USAGE_REPORT_S\)"):
        database.grouped(wide, 100_000, 0.001)
    assert len(database.grouped(wide, 100_000, 60.0)) == 20_000


async def test_reports_of_a_client_are_made_one_after_the_other_and_never_hold_what_others_need() -> None:
    """A few may wait, the rest is refused; and another client's comes between."""
    reports, running, most = Reports(), 0, 0
    go_on = threading.Event()

    def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        go_on.wait(10)
        running -= 1

    mine = [asyncio.create_task(reports.made("key:a", work)) for _ in range(12)]
    ended_tasks, waiting = await asyncio.wait(mine, timeout=0.3)
    assert (len(waiting), {type(one.exception()) for one in ended_tasks}) == (4, {RateLimited})
    assert await reports.made("key:b", lambda: "another's") == "another's"
    assert await asyncio.to_thread(lambda: "any other work") == "any other work"
    go_on.set()
    await asyncio.gather(*waiting)
    assert most == 1
    assert not reports._asked
    assert not reports._turns


def test_a_parquet_file_has_all_columns_with_their_types(file: UsageDatabase, tmp_path: Path) -> None:
    file.write([record("a"), record("b", ttft_s=0.5)], {})
    with (tmp_path / "usage.parquet").open("wb") as out:
        write_parquet(file.records(ALL), COLUMNS, out)
    table = pyarrow.parquet.read_table(tmp_path / "usage.parquet")
    assert table.to_pylist() == rows(file)
    assert (str(table.schema.field("ttft_s").type), str(table.schema.field("epoch").type)) == ("double", "int64")


def test_a_database_without_tables_or_with_others_is_named(tmp_path: Path) -> None:
    database = UsageDatabase(f"sqlite:///{tmp_path / 'usage.sqlite'}")
    with pytest.raises(UsageDown, match="has no usage yet"):
        database.grouped(ALL, 10)
    database.create()
    with database._begun() as sql:
        sql.exec_driver_sql("UPDATE xylem_usage_schema SET version = 7")
    with pytest.raises(SettingsError, match="usage in version 7 of its tables, and this is 1"):
        database.create()
    database.close()


def test_no_error_shows_the_password() -> None:
    database = UsageDatabase("postgresql://me:secret@127.0.0.1:1/x")
    with pytest.raises(UsageDown, match=r"postgresql.*me:\*\*\*@127.0.0.1:1/x: ") as failure:
        database.create()
    assert "secret" not in failure.value.message


async def test_a_record_is_in_redis_when_its_answer_may_end(redis: "Redis", wire: Wire) -> None:
    await UsageOutbox(wire, KEYS).store(record("a"))
    assert await streamed(redis) == [record("a")]


class Away(Wire):
    """Its Redis can't be reached while `away`."""

    away = False

    async def execute(self, commands: Any) -> list[Any]:
        if self.away:
            raise StoreDown
        return await super().execute(commands)


async def test_records_wait_while_redis_is_away_and_no_answer_waits_for_it(
    redis: "Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outboxes, "_MOST_WAITING", 3)
    wire = Away(redis)
    wire.away = True
    outbox = UsageOutbox(wire, KEYS)
    async with beside(outbox.run()):
        async with asyncio.timeout(5):
            for name in "abcd":
                await outbox.store(record(name))
        wire.away = False

        async def there() -> bool:
            return [one.id for one in await streamed(redis)] == ["a", "b", "c"]  # there was no room for more

        await until(there)
        await outbox.store(record("e"))
        assert [one.id for one in await streamed(redis)][-1] == "e"
    wire.close()


async def test_what_redis_confirmed_just_before_it_died_is_written_again(redis: "Redis", wire: Wire) -> None:
    """Redis may have lost its last second."""
    outbox = UsageOutbox(wire, KEYS)
    async with beside(outbox.run()):
        await outbox.store(record("a"))
        await redis.delete(KEYS.usage())
        await redis.client_kill_filter(_type="normal", skipme=True)

        async def there() -> bool:
            with_b = [one.id for one in await streamed(redis)]
            if "b" not in with_b:
                await outbox.store(record("b"))
            return {"a", "b"} <= set(with_b)

        await until(there)


async def test_what_waits_at_the_end_is_written(redis: "Redis", wire: Wire) -> None:
    outbox = UsageOutbox(wire, KEYS)
    outbox.add(record("a"))
    await outbox.close()
    assert await streamed(redis) == [record("a")]


async def test_a_writer_that_dies_before_it_could_say_so_has_written_once(
    redis: "Redis", wire: Wire, file: UsageDatabase
) -> None:
    """Written to SQL, and not deleted from the stream: the next one finds it there."""

    class Dies(Wire):
        async def execute(self, commands: Any) -> list[Any]:
            if commands[0][0] == "XDEL":
                raise StoreDown
            return await super().execute(commands)

    outbox, dying = UsageOutbox(wire, KEYS), Dies(redis)
    for name in "abc":
        await outbox.store(record(name))
    with pytest.raises(StoreDown):
        await UsageWriter(dying, KEYS, file).write()
    dying.close()
    assert (len(rows(file)), len(await streamed(redis))) == (3, 3)
    await redis.delete(KEYS.usage_leader())  # its lease is over
    await outbox.store(record("d"))
    await UsageWriter(wire, KEYS, file).write()
    assert [row["id"] for row in rows(file)] == ["a", "b", "c", "d"]
    assert await streamed(redis) == []


async def test_one_writer_writes_at_a_time(redis: "Redis", wire: Wire, file: UsageDatabase) -> None:
    await UsageOutbox(wire, KEYS).store(record("a"))
    first, second = UsageWriter(wire, KEYS, file), UsageWriter(wire, KEYS, file)
    await first.write()
    await UsageOutbox(wire, KEYS).store(record("b"))
    await second.write()
    assert [one.id for one in await streamed(redis)] == ["b"]
    await first.write()
    assert [row["id"] for row in rows(file)] == ["a", "b"]


async def test_what_nobody_understands_holds_up_no_other(redis: "Redis", wire: Wire, file: UsageDatabase) -> None:
    await redis.xadd(KEYS.usage(), {"b": b"\xc1"})
    await redis.xadd(KEYS.usage(), {"c": "1", "d": "2"})
    await redis.xadd(KEYS.usage(), {"more": "1", "b": encode([record("a")])})
    await redis.hset(KEYS.prices(), mapping={"m": encode(Price(1e6)), "bad": b"\xc1"})  # type: ignore[misc]
    await UsageWriter(wire, KEYS, file).write()
    assert [(row["id"], row["cost"]) for row in rows(file)] == [("a", 10.0)]


DEADLY = """
import asyncio, os, signal, sys
from app.keys import Keys
from app.store import Wire, async_client
from app.usage.database import UsageDatabase
from workers.usage.writer import UsageWriter

class Deadly(UsageDatabase):
    def write(self, records, prices):
        if any(one.id == "poison" for one in records):  # as a driver might
            os.kill(os.getpid(), signal.SIGKILL)
        super().write(records, prices)

async def main(redis_url, sql_url):
    redis = async_client(redis_url)
    wire = Wire(redis)
    database = Deadly(sql_url)
    await UsageWriter(wire, Keys("xylem"), database, 0).write()
    database.close()
    wire.close()
    await redis.aclose()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_record_that_kills_whoever_writes_it_is_set_aside(
    redis: "Redis", wire: Wire, file: UsageDatabase, store_url: str, tmp_path: Path
) -> None:
    """No other one was written any more: each writer began with it again."""
    for name in ("a", "poison", "b"):
        await UsageOutbox(wire, KEYS).store(record(name))
    ends = []
    while await streamed(redis):
        await redis.delete(KEYS.usage_leader())  # its lease is over
        command = sys.executable, "-c", DEADLY, store_url, f"sqlite:///{tmp_path / 'usage.sqlite'}"
        process = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
        ends.append(await process.wait())
        assert len(ends) < 6
    assert ends == [-signal.SIGKILL] * 3 + [0]  # twice with all of them, once with it alone
    assert [row["id"] for row in rows(file)] == ["a", "b"]
    ((_, fields),) = await redis.xrange(KEYS.usage_aside())
    assert [one.id for one in decode_usage(fields[b"b"])] == ["poison"]
    assert await redis.keys("*handling*") == []


async def test_the_stream_is_bounded(redis: "Redis", wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outboxes, "STREAM_ENTRIES", 100)
    outbox = UsageOutbox(wire, KEYS)
    for i in range(500):
        await outbox.store(record(str(i)))
    ids = [one.id for one in await streamed(redis)]
    assert len(ids) < 300
    assert ids[-1] == "499"
