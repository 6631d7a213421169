"""`xylem top`: the fleet in a terminal, live."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.client import HERE, AdminKey, ApiError, Url, admin_key, connected, reason
from app.cli.event_lines import event_lines
from app.cli.report import out

if TYPE_CHECKING:
    from rich.console import RenderableType

Seen = dict[str, Any]  # as GET /admin/fleet has it
_WIDTH = 4  # characters of a bar
_COLUMNS = {"worker": 8, "state": 8, "running": 11, "KV blocks used": 14, "cached": 6, "queue": 12, "prefill": 7}
_REQUESTS = 8


def top(
    url: Url = HERE,
    key: AdminKey = None,
    once: Annotated[bool, typer.Option("--once", help="Show it once, and exit.")] = False,
) -> None:
    """Show pools, workers and the latest requests, once a second, until Ctrl-C."""
    from rich.live import Live

    with connected(url, admin_key(url, key)) as client:
        fleets = fleet(client)
        if once:
            out.print(shown(next(fleets)))
            return
        with Live(console=out, auto_refresh=False, screen=out.is_terminal) as live:
            try:
                for snapshot in fleets:
                    live.update(shown(snapshot), refresh=True)
            except KeyboardInterrupt:
                return


def fleet(client: Any) -> Iterator[Seen]:
    """The fleet now, and again each second. Raises: ApiError, also when the stream ends; httpx.TransportError."""
    with client.stream("GET", "/admin/fleet", headers={"accept": "text/event-stream"}) as response:
        if response.is_error:
            response.read()
            raise ApiError(reason(response))
        for line in event_lines(response):
            if line.startswith("data: "):
                snapshot = json.loads(line.removeprefix("data: "))
                if "error" in snapshot:
                    raise ApiError(snapshot["error"]["message"])
                yield snapshot
    raise ApiError("the server has stopped")


def shown(look: Seen) -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    workers = sum(len(pool["workers"]) for pool in look["pools"])
    requests = f"{look['in_flight']} requests, {look['held']} waiting for room"
    head = f"{workers} workers; replica {look['replica']}: {requests}\n"
    parts: list[RenderableType] = [Text(head, style="dim")]
    for pool in look["pools"]:
        role = pool["role"] if pool["task"] == "generate" else pool["task"]
        about = f" {pool['model']}, {role}" + (f", {pool['held']} waiting for room" if pool["held"] else "")
        parts += [Text.assemble((pool["pool"], "bold"), about), _workers(pool["workers"])]
        parts += [Text(f"{one['id']} lost", style="red") for one in pool["lost"]]
        parts.append(Text())
    return Group(*parts, _requests(look["requests"]))


def _workers(workers: list[Seen]) -> "RenderableType":
    from rich.table import Column, Table

    # Columns of the same widths in all pools.
    columns = [Column(name, no_wrap=True, min_width=width) for name, width in _COLUMNS.items()]
    table = Table(*columns, box=None, padding=(0, 1, 0, 0), header_style="dim", show_header=bool(workers))
    for worker in workers:
        table.add_row(*_worker(worker))
    return table


def _worker(worker: Seen) -> list[str]:
    blocks, reservations, speed = worker["blocks"], worker["reserved"], worker["speeds"]["prefill_tokens_per_s"]
    waiting = f" +{worker['waiting']}" if worker["waiting"] else ""
    lent_note = f" ({blocks['lent']} kept)" if blocks["lent"] else ""
    return [
        worker["id"],
        worker["state"],
        f"{_bar(worker['running'], worker['seats'])} {worker['running']}/{worker['seats']}{waiting}",
        f"{_bar(blocks['held'], blocks['total'])} {blocks['held']}/{blocks['total']}{lent_note}",
        "–" if blocks["cached"] is None else str(blocks["cached"]),
        f"{reservations['without_first_token']}, {reservations['tokens_to_compute']} tokens",
        f"{speed:,.0f}/s" if speed else "–",
    ]


def _bar(part: int, whole: int) -> str:
    full = min(_WIDTH, -(-part * _WIDTH // whole)) if whole else 0
    return "█" * full + "░" * (_WIDTH - full)


def _requests(latest: list[Seen]) -> "RenderableType":
    from rich.table import Table

    columns = ("request", "state", "prompt", "first token", "in all")
    table = Table(*columns, box=None, padding=(0, 2, 0, 0), header_style="dim")
    for one in latest[:_REQUESTS]:
        state = one.get("outcome") or f"{one['state']} {' '.join(one['workers'])}"
        table.add_row(one["id"], state, str(one["prompt_tokens"]), _s(one, "first_token_s"), _s(one, "ended_s"))
    return table


def _s(one: Seen, name: str) -> str:
    value = one.get(name)
    return "" if value is None else f"{value:.3f} s"
