"""`xylem pull` and `xylem models`: the models that are fetched from a hub or from S3."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.report import err, listing, out, refuse

if TYPE_CHECKING:
    from app.model_store.source import RemoteModel
    from app.model_store.store import Progress, StoredModel
    from app.pools.schema import Pool
    from app.settings import Settings

Pools = Annotated[Path | None, typer.Option(help="The pools file to read [XYLEM_POOLS_FILE].")]


def pull(
    what: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL|PATH]", help="A model of the pools file, hf://… or s3://…; all if not given."),
    ] = None,
    pools: Pools = None,
) -> None:
    """Fetch the models of the pools file, or their newer versions, into XYLEM_MODEL_STORE."""
    from app.errors import SettingsError
    from app.settings import load_settings

    try:
        settings = load_settings(**({} if pools is None else {"pools_file": pools}))
        sources = _sources(settings, what)
    except SettingsError as exc:
        refuse(exc.message)
    if not sources:
        err.print("nothing to fetch: all models are folders of this machine")
    for source in sources:
        try:
            typer.echo(fetch(settings, source, refresh=True))
        except SettingsError as exc:
            refuse(exc.message, code=1)


def fetch(settings: "Settings", source: "RemoteModel", *, refresh: bool = False) -> Path:
    """The model's folder, with its progress on a terminal, else in the log. Raises: ModelNotFetched."""
    from app.model_store.store import ModelStore

    store = ModelStore(settings.fetched_models, settings.model_store_bytes)
    try:
        with _shown(source) as progress:
            return store.obtain(source, "all", progress=progress, refresh=refresh)
    finally:
        store.close()


def fetch_all(settings: "Settings", pools: "Iterable[Pool]") -> None:
    """Fetches the pools' models that are not on this machine. Exits if one can't be fetched."""
    from app.errors import ModelNotFetched
    from app.model_store.source import RemoteModel

    for path in dict.fromkeys(pool.path for pool in pools):
        if isinstance(path, RemoteModel):
            try:
                fetch(settings, path)
            except ModelNotFetched as exc:
                refuse(exc.message, code=1)


def _sources(settings: "Settings", what: str | None) -> "list[RemoteModel]":
    """Raises: SettingsError."""
    from app.errors import SettingsError
    from app.model_store.source import RemoteModel, read_source
    from app.pools.pools_file import load_pools

    if what is not None and "://" in what:
        try:
            return [read_source(what)]
        except ValueError as exc:
            raise SettingsError(str(exc)) from exc
    pools = load_pools(settings.pools_file).pools.values()
    if what is not None and what not in {pool.model for pool in pools}:
        names = ", ".join(sorted({pool.model for pool in pools}))
        raise SettingsError(f"{settings.pools_file} has no model '{what}' (it has: {names})")
    mine = (pool.path for pool in pools if what in (None, pool.model))
    return list(dict.fromkeys(path for path in mine if isinstance(path, RemoteModel)))


@contextmanager
def _shown(source: "RemoteModel") -> "Iterator[Progress]":
    from app.pools.fetched_pools import logged

    if not err.is_terminal:
        yield logged(source)
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=err) as bars:
        task = bars.add_task(str(source), total=None)
        yield lambda loaded_bytes, size: bars.update(task, completed=loaded_bytes, total=size)


def models(pools: Pools = None) -> None:
    """Show the fetched models, and those of the pools file that are not fetched yet."""
    from rich.markup import escape

    from app.errors import SettingsError
    from app.model_store.store import ModelStore
    from app.settings import load_settings

    try:
        settings = load_settings(**({} if pools is None else {"pools_file": pools}))
        missing = _sources(settings, None) if settings.pools_file.exists() else []
    except SettingsError as exc:
        refuse(exc.message)
    store = ModelStore(settings.fetched_models, settings.model_store_bytes)
    table = listing("name", "where", "size", "complete", "in use", "last use")
    rows = store.stored()
    for row in rows:
        table.add_row(*map(escape, _row(row)))
    for source in missing:
        if str(source) not in {row.record.source for row in rows}:
            table.add_row(escape(str(source)), "not fetched", "", "no", "", "")
    out.print(table)


def _row(row: "StoredModel") -> tuple[str, ...]:
    from rich.filesize import decimal

    record = row.record
    complete = f"no, {row.there / max(1, record.size):.0%}"
    if record.complete:
        complete = "yes" if record.part == "all" else "without weights"
    used_at = datetime.fromtimestamp(row.used_at).astimezone().strftime("%Y-%m-%d %H:%M")
    return (
        f"{record.source} ({record.version[:12]})",
        str(row.folder),
        decimal(record.size),
        complete,
        "yes" if row.in_use else "no",
        used_at,
    )
