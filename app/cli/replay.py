"""`xylem replay`: a trace as load on any OpenAI-compatible server."""

import asyncio
import secrets
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.client import HERE, Key, Url, connected, first_model
from app.cli.report import err, out, refuse

if TYPE_CHECKING:
    from app.cli.replaying.player import Chain, Player
    from app.cli.replaying.prompts import Measure

_EVERY_S = 0.5  # the live view


def replay(
    trace: Annotated[Path, typer.Argument(help="As `xylem record` writes it: .jsonl or .jsonl.gz.")],
    url: Url = HERE,
    model: Annotated[str | None, typer.Option(help="A model of that server; its first one if not given.")] = None,
    speed: Annotated[float, typer.Option(min=0.001, max=1000, help="2: twice as many requests a second.")] = 1.0,
    minutes: Annotated[float, typer.Option(min=0.01, max=1440, help="No request is sent after that.")] = 60,
    max_in_flight: Annotated[
        int, typer.Option("--max-in-flight", min=1, max=20_000, help="With so many the replay ends.")
    ] = 1000,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for which a server may say nothing.")] = 600,
    seed: Annotated[
        str, typer.Option(help="Of the prompts' words; another one each time if not given, so that nothing is cached.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    plot: Annotated[Path | None, typer.Option(help="A picture to write: .png or .svg. It needs matplotlib.")] = None,
    key: Key = None,
) -> None:
    """Send a trace's requests at their times, with its lengths and shared prefixes, and measure the answers.

    Ctrl-C ends it with a report. Exit code 1 if any request failed.
    """
    from app.cli.replaying.player import chains
    from app.cli.replaying.summary import summary
    from app.cli.trace import BadTrace, read_trace

    if plot is not None:
        _check_plot(plot)
    try:
        requests = read_trace(trace)
    except BadTrace as exc:
        refuse(str(exc))
    address = url.rstrip("/").removesuffix("/v1")
    with connected(address, key) as client:
        name = model or first_model(client)
        options = {"speed": speed, "seconds": minutes * 60, "most": max_in_flight}
        actual_seed = seed or secrets.token_hex(8)
        player, measure = asyncio.run(
            _replayed(address, key, name, actual_seed, timeout, chains=chains(requests), options=options)
        )
    about = {
        "trace": trace.name,
        "model": name,
        "speed": speed,
        "seed": actual_seed,
        "tokens_per_word": round(measure.per_word, 4),
        "template_tokens": round(measure.beside, 1),
    }
    _report(player, about | summary(player, len(requests)), plot, as_json)


async def _replayed(
    url: str, key: str | None, model: str, seed: str, timeout_s: float, chains: "list[Chain]", options: dict[str, Any]
) -> "tuple[Player, Measure]":
    """Raises: ApiError, httpx.TransportError."""
    import httpx
    from rich.live import Live

    from app.cli.replaying.player import Player
    from app.cli.replaying.prompts import Prompts
    from app.cli.replaying.sending import Sender
    from app.cli.replaying.summary import live

    headers = {"authorization": f"Bearer {key}"} if key else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=options["most"])
    wait = httpx.Timeout(timeout_s, connect=10)
    async with httpx.AsyncClient(base_url=url, headers=headers, limits=limits, timeout=wait, trust_env=False) as client:
        sender = Sender(client, model)
        measure = await sender.measure()
        if not sender.keeps_lengths:
            err.print("the server takes no `ignore_eos`: answers may be shorter than in the trace")
        player, count = Player(sender, Prompts(measure, seed), **options), sum(len(steps) for _, steps in chains)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, player.stop, "interrupted")
        with Live(console=err, transient=True, auto_refresh=False) as display:
            playing = asyncio.create_task(player.run(chains))
            while not playing.done():
                await asyncio.wait([playing], timeout=_EVERY_S)
                if err.is_terminal:
                    display.update(live(player, count), refresh=True)
        await playing
    return player, measure


def _check_plot(path: Path) -> None:
    """Checks before the replay, not after it, whether a plot can be written there."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        refuse("--plot needs matplotlib: pip install matplotlib")
    if path.suffix not in (".png", ".svg", ".pdf") or not path.parent.is_dir():
        refuse(f"{path}: a .png, .svg or .pdf in a folder that exists")


def _report(player: "Player", results: dict[str, Any], plot: Path | None, as_json: bool) -> None:
    import orjson

    from app.cli.replaying.plot import plot as draw
    from app.cli.replaying.summary import table

    if as_json:
        typer.echo(orjson.dumps(results).decode())
    else:
        out.print(table(results))
    if plot is not None:
        try:
            draw(plot, player.outcomes, f"{results['trace']} on {results['model']}, speed {results['speed']:g}")
        except OSError as exc:
            refuse(f"{plot}: {exc.strerror}", code=1)
    for error, count in results["errors"].items():
        err.print(f"{count} failed: {error}", markup=False, soft_wrap=True)
    if player.stopped == "interrupted":
        raise typer.Exit(130)
    if player.stopped:
        refuse(f"ended early: {player.stopped}", code=1)
    if results["requests"]["failed"]:
        raise typer.Exit(1)
