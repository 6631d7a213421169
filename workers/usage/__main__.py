"""`python -m workers.usage`, as `xylem usage write` starts it."""

import asyncio
from contextlib import suppress

from app.errors import StoreDown, UsageDown, XylemError
from app.running.ending import end_signals, end_tasks
from app.running.log_lines import setup_logging
from app.settings import Settings, load_settings
from app.store import Wire, async_client
from app.store.wire_version import check, keep_noting, note
from app.telemetry import logger
from app.usage.database import UsageDatabase
from workers.usage.writer import UsageWriter

log = logger(__name__)

_AGAIN_S = 2.0


async def _run() -> None:
    """Writes usage until SIGTERM or SIGINT. Raises: XylemError."""
    settings = load_settings()
    setup_logging(settings.log_level, json=settings.log_json)
    database = UsageDatabase(settings.usage_database)
    stop_event = asyncio.Event()
    for number in end_signals():
        asyncio.get_running_loop().add_signal_handler(number, stop_event.set)
    try:
        work = asyncio.create_task(_write(settings, database))
        await asyncio.wait([work, stop := asyncio.create_task(stop_event.wait())], return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
        await end_tasks([work, stop])
    finally:
        database.close()
    log.info("usage_writer_stopped")


async def _write(settings: Settings, database: UsageDatabase) -> None:
    """Raises: XylemError."""
    redis = async_client(settings.redis_url, settings.keys.home)
    wire = Wire(redis)
    noting = asyncio.create_task(keep_noting(wire, settings))
    try:
        with suppress(StoreDown):
            (strangers,) = await wire.execute([note(settings)])
            check(strangers)
        await _create(database)
        log.info("usage_writer_started", database=database.shown)
        await UsageWriter(wire, settings.keys, database, settings.max_migrations).run()
    finally:
        await end_tasks([noting])
        wire.close()
        await redis.aclose()


async def _create(database: UsageDatabase) -> None:
    """Waits for the database. Raises: SettingsError."""
    while True:
        try:
            await asyncio.to_thread(database.create)
            return
        except UsageDown as exc:  # another writer makes the tables at this moment, or it is away
            log.warning("usage_waits", error=exc.message)
            await asyncio.sleep(_AGAIN_S)


def main() -> None:
    try:
        asyncio.run(_run())
    except XylemError as exc:
        log.critical("usage_writer_not_started", reason=exc.message)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
