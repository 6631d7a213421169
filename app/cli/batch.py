"""`xylem batch`: a file of requests in, a file of answers out."""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.batch_run.command import run
from app.cli.client import HERE, ApiError, Key, Url, checked, connected
from app.cli.lines import check_order, endpoint_of, labels, upload
from app.cli.outcome import report, save
from app.cli.report import err, listing, out, refuse
from app.cli.waiting import await_end

batch = typer.Typer(
    name="batch", help="Files of requests, answered by idle engines within a given time.", no_args_is_help=True
)
PATH = "/v1/batches"

Id = Annotated[str, typer.Argument(metavar="ID", help="As `submit` printed it.")]
Output = Annotated[Path | None, typer.Option("--output", help="File for the answers.")]
Errors = Annotated[Path | None, typer.Option("--errors", help="File for the errors of failed lines.")]
Wait = Annotated[
    bool, typer.Option("--wait", help="Wait until it has ended; exit code 1 unless it completed and no line failed.")
]


batch.command()(run)


@batch.command()
def submit(
    file: Annotated[Path, typer.Argument(help="JSON lines: custom_id, method, url and body.")],
    endpoint: Annotated[
        str | None, typer.Option(help="Endpoint of all its requests; the first line's url if not given.")
    ] = None,
    window: Annotated[str, typer.Option(help="How long it may take: 90s, 30m, 24h, 7d.")] = "24h",
    metadata: Annotated[list[str] | None, typer.Option(metavar="K=V", help="A label of the batch; up to 16.")] = None,
    wait: Wait = False,
    output: Output = None,
    errors: Errors = None,
    url: Url = HERE,
    key: Key = None,
) -> None:
    """Upload a file and have its requests answered. Prints the batch's id."""
    if (output or errors) and not wait:
        refuse("--output and --errors need --wait; without it: xylem batch results")
    endpoint = endpoint or endpoint_of(file)
    check_order(endpoint, window)
    order = {"endpoint": endpoint, "completion_window": window, "metadata": labels(metadata or [])}
    with connected(url, key) as client:
        new_batch = _begun(client, order | {"input_file_id": upload(client, file)})
        typer.echo(new_batch["id"])  # and nothing else to stdout, so that scripts can take it
        if wait:
            _wait_and_save(client, new_batch["id"], output, errors)


@batch.command()
def status(
    id_: Id,
    wait: Wait = False,
    url: Url = HERE,
    key: Key = None,
) -> None:
    """Show a batch's status."""
    with connected(url, key) as client:
        if wait:
            _wait_and_save(client, id_, None, None)
        else:
            report(_get(client, id_), out)


@batch.command("list")
def show(
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many.")] = 20, url: Url = HERE, key: Key = None
) -> None:
    """Show the newest batches."""
    from rich.table import Column

    with connected(url, key) as client:
        page = checked(client.get(PATH, params={"limit": limit}))
    columns = ("created", "status", "lines", "done", "failed")
    id_ = Column("id", no_wrap=True, min_width=len("batch_") + 24)  # whole, to be copied, however narrow the terminal
    table = listing(id_, *columns)
    for item in page["data"]:
        created_at = datetime.fromtimestamp(item["created_at"]).astimezone().strftime("%m-%d %H:%M")
        counts = (str(item["request_counts"][name]) for name in ("total", "completed", "failed"))
        table.add_row(item["id"], created_at, "paused" if item["paused"] else item["status"], *counts)
    out.print(table)
    if page["has_more"]:
        err.print("[dim]there are more: --limit[/]")


@batch.command()
def results(id_: Id, output: Output = None, errors: Errors = None, url: Url = HERE, key: Key = None) -> None:
    """Write a batch's answers to stdout or a file, in no particular order."""
    with connected(url, key) as client:
        save(client, _get(client, id_), output, errors, to_stdout=True)


@batch.command()
def cancel(id_: Id, url: Url = HERE, key: Key = None) -> None:
    """Stop a batch. Its answers so far are kept."""
    _post(url, key, id_, "cancel")


@batch.command()
def pause(id_: Id, url: Url = HERE, key: Key = None) -> None:
    """Compute nothing of a batch until `resume`. Its deadline stays."""
    _post(url, key, id_, "pause")


@batch.command()
def resume(id_: Id, url: Url = HERE, key: Key = None) -> None:
    """Resume a paused batch."""
    _post(url, key, id_, "resume")


def _begun(client: Any, order: dict[str, Any]) -> Any:
    """The new batch. A file that it was refused for is not left behind."""
    try:
        return checked(client.post(PATH, json=order))
    except ApiError:
        client.delete(f"/v1/files/{order['input_file_id']}")
        raise


def _post(url: str, key: str | None, id_: str, action: str) -> None:
    with connected(url, key) as client:
        report(checked(client.post(f"{PATH}/{id_}/{action}")), out)


def _get(client: Any, id_: str) -> Any:
    return checked(client.get(f"{PATH}/{id_}"))


def _wait_and_save(client: Any, id_: str, output: Path | None, errors: Path | None) -> None:
    """Exits with code 1 if the batch did not complete, or a line failed."""
    try:
        outcome = await_end(client, f"{PATH}/{id_}")
    except KeyboardInterrupt:
        hint = f"Wait again: xylem batch status {id_} --wait; stop it: xylem batch cancel {id_}"
        err.print(f"[dim]{id_} still runs. {hint}[/]", soft_wrap=True)
        raise typer.Exit(130) from None
    report(outcome, err)
    if output or errors:
        save(client, outcome, output, errors, to_stdout=False)
    if outcome["status"] != "completed" or outcome["request_counts"]["failed"]:
        raise typer.Exit(1)
