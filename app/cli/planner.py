"""`xylem planner`: how many workers each pool needs."""

import os
import sys
from enum import StrEnum
from typing import Annotated, cast

import typer

from app.cli.report import listing, out, refuse

planner = typer.Typer(name="planner", help="How many workers each pool needs.", invoke_without_command=True)


class ScalerName(StrEnum):
    redis = "redis"
    kubernetes = "kubernetes"
    ssh = "ssh"


@planner.callback()
def run(
    context: typer.Context,
    act: Annotated[
        bool, typer.Option("--act", help="Start and end workers; else it only says what it would do.")
    ] = False,
    scaler: Annotated[
        ScalerName,
        typer.Option(help="What does it. redis: whoever follows desired:<pool>, such as `xylem up --planner`."),
    ] = ScalerName.redis,
    interval: Annotated[float, typer.Option(min=0.5, max=600, help="Seconds between two decisions.")] = 10.0,
) -> None:
    """Plan until it is stopped. Several processes may: one leads, and another one takes over when it ends."""
    if context.invoked_subcommand is not None:
        return
    argv = [sys.executable, "-m", "workers.planner", "act" if act else "advise", scaler, str(interval)]
    os.execv(sys.executable, argv)  # noqa: S606 (this process becomes the planner, so signals reach it)


@planner.command()
def status() -> None:
    """Show what each pool has, and what the planner wants there."""
    import msgspec

    from app.cli.stored import found_settings, stored
    from app.errors import SettingsError
    from app.ids import WorkerId
    from app.planner.desired import decode_desired
    from app.planner.rules import scales_of
    from app.pools.pools_file import load_pools

    settings = found_settings()
    try:
        scales = scales_of(load_pools(settings.pools_file))
    except SettingsError as exc:
        refuse(exc.message)
    if not scales:
        refuse("no pool of the pools file has the key scale")
    table = listing("pool", "workers", "wanted", "reason", "requests/s", "decided", "mode")
    with stored(settings) as (redis, keys):
        now = redis.time()[0]
        leader = redis.get(keys.planner_leader())
        for pool in scales:
            names = [name.decode() for name in cast(list[bytes], redis.hkeys(keys.pool(pool)))]
            there = str(sum(bool(redis.exists(keys.worker(WorkerId(name)))) for name in names))
            raw = redis.get(keys.desired(pool))
            if raw is None:
                table.add_row(pool, there, "-", "no planner runs" if leader is None else "no worker and no traffic yet")
                continue
            try:
                decision = decode_desired(raw)
            except msgspec.DecodeError as exc:
                refuse(f"{keys.desired(pool)}: {exc}", code=1)
            ago, mode = f"{max(0.0, now - decision.at):.0f} s ago", "act" if decision.act else "advise"
            reason = f"{decision.reason} ({decision.problem})" if decision.problem else decision.reason
            table.add_row(pool, there, str(decision.workers), reason, f"{decision.arrivals_per_s:.2f}", ago, mode)
    out.print(table)
    if leader is None:
        out.print("no planner leads")
