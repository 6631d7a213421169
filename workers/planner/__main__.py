"""`python -m workers.planner MODE SCALER INTERVAL`, as `xylem planner` starts it: MODE is advise or act."""

import asyncio
import sys
from contextlib import suppress

from app.errors import SettingsError, StoreDown, XylemError
from app.pools.pools_file import load_pools
from app.running.ending import end_signals
from app.running.log_lines import setup_logging
from app.settings import load_settings
from app.store import Wire, async_client
from app.store.wire_version import check, keep_noting, note
from app.telemetry import logger
from workers.planner.process import Planner
from workers.planner.scalers import scaler_of
from workers.planner.scalers.base import RedisScaler

log = logger(__name__)


async def _run(mode: str, scaler_name: str, interval_s: float) -> None:
    """Runs the planner until SIGTERM or SIGINT. Raises: XylemError."""
    settings = load_settings()
    setup_logging(settings.log_level, json=settings.log_json)
    configuration = load_pools(settings.pools_file)
    if not configuration.planner.objectives:
        raise SettingsError(f"{settings.pools_file}: planner.objectives: nothing to plan for")
    act = mode == "act"
    scaler = scaler_of(scaler_name, settings, configuration) if act else RedisScaler()  # advice needs no rights
    redis = async_client(settings.redis_url, settings.keys.home)
    wire = Wire(redis)
    try:
        with suppress(StoreDown):
            (strangers,) = await wire.execute([note(settings)])
            check(strangers)
        planner = Planner(settings, configuration, wire, scaler, interval_s, act=act)
        async with asyncio.TaskGroup() as all_of_it:
            work = [all_of_it.create_task(planner.run()), all_of_it.create_task(keep_noting(wire, settings))]
            for number in end_signals():
                asyncio.get_running_loop().add_signal_handler(number, lambda: [task.cancel() for task in work])
            log.info("planner_started", mode=mode, scaler=scaler_name, models=list(configuration.planner.objectives))
    finally:
        await scaler.close()
        wire.close()
        await redis.aclose()
    log.info("planner_stopped")


def main() -> None:
    mode, scaler, interval = sys.argv[1:]
    try:
        asyncio.run(_run(mode, scaler, float(interval)))
    except XylemError as exc:
        log.critical("planner_not_started", reason=exc.message)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
