"""`xylem keys`: the keys of the API's clients."""

import hashlib
import secrets
import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, cast

import typer

from app.cli.erase import erase_key
from app.cli.report import err, out, refuse
from app.cli.stored import stored

if TYPE_CHECKING:
    from app.tenants.records import ApiKey

keys = typer.Typer(
    name="keys",
    help="Keys for the API, which requires them if XYLEM_REQUIRE_KEYS is on. Stored in the Redis of XYLEM_REDIS_URL.",
    no_args_is_help=True,
)

keys.command("erase")(erase_key)


@keys.command()
def create(
    name: Annotated[str, typer.Argument(help="Its owner's name.")],
    rpm: Annotated[int | None, typer.Option("--rpm", min=1, help="Requests a minute; no limit if not given.")] = None,
    tpm: Annotated[int | None, typer.Option("--tpm", min=1, help="Tokens of prompts and answers a minute.")] = None,
    batch_rpm: Annotated[
        int | None,
        typer.Option("--batch-rpm", min=1, help="Lines of batches a minute, apart from other requests' limits."),
    ] = None,
    batch_tpm: Annotated[int | None, typer.Option("--batch-tpm", min=1, help="Tokens of batches a minute.")] = None,
    file_quota: Annotated[
        int | None, typer.Option("--file-quota", min=0, help="Bytes of all its files; XYLEM_FILE_QUOTA if not given.")
    ] = None,
    min_priority: Annotated[
        int | None,
        typer.Option(
            "--min-priority",
            min=-(2**31),
            max=0,
            help="The most urgent priority it may ask for, lower is sooner; XYLEM_MIN_PRIORITY if not given.",
        ),
    ] = None,
) -> None:
    """Make a key and print it, this once: only a digest of it is stored."""
    from app.ids import new_key_id
    from app.messages import encode
    from app.tenants.records import ApiKey

    if not name.strip() or not name.isprintable() or len(name) > 64:
        refuse("a key's name has 1 to 64 printable characters")
    token = f"xyl-{secrets.token_urlsafe(32)}"
    digest = hashlib.sha256(token.encode()).digest()
    record = ApiKey(name, digest, time.time(), rpm, tpm, new_key_id(), file_quota, min_priority, batch_rpm, batch_tpm)
    with stored() as (redis, names):
        if not redis.hsetnx(names.api_keys(), name, encode(record)):
            refuse(f"there is a key '{name}' already; take another name, or first: xylem keys revoke", code=1)
    typer.echo(token)  # and nothing else to stdout, so that scripts can take it
    err.print("[dim]Keep it: it can't be shown again. It is valid within two seconds.[/]")


@keys.command("list")
def show() -> None:
    """Show the names, ids, ages and limits of all keys."""
    from rich.markup import escape
    from rich.table import Column, Table

    from app.tenants.records import decode_api_key

    with stored() as (redis, names):
        records = [decode_api_key(cast(bytes, raw)) for raw in redis.hvals(names.api_keys())]
    fixed = (Column(name, no_wrap=True) for name in ("name", "id", "created"))
    table = Table(*fixed, "limits", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for record in sorted(records, key=lambda r: r.created):
        created = datetime.fromtimestamp(record.created).astimezone().strftime("%Y-%m-%d %H:%M")
        table.add_row(escape(record.name), escape(record.owner), created, _limits(record))
    out.print(table)


def _limits(record: "ApiKey") -> str:
    limits = {
        "{} requests/min": record.requests_per_min,
        "{} tokens/min": record.tokens_per_min,
        "{} lines of batches/min": record.batch_requests_per_min,
        "{} tokens of batches/min": record.batch_tokens_per_min,
        "{} bytes of files": record.file_quota,
        "priority from {}": record.min_priority,
    }
    return ", ".join(form.format(limit) for form, limit in limits.items() if limit is not None) or "none"


@keys.command()
def revoke(name: Annotated[str, typer.Argument(help="As `xylem keys list` shows it.")]) -> None:
    """Make a key invalid on every API replica within two seconds. Its running requests are finished.

    Its files and batches stay until they expire, or `xylem keys erase`. A new key of the same name does not get them.
    """
    from app.tenants.records import decode_api_key

    with stored() as (redis, names):
        raw = redis.hget(names.api_keys(), name)
        if raw is None:
            refuse(f"there is no key '{name}': xylem keys list", code=1)
        record = decode_api_key(cast(bytes, raw))
        redis.hset(names.key_owners(), record.owner, record.tenant)  # what it has made can still be erased
        redis.hdel(names.api_keys(), name)
    err.print(f"revoked {name} ({record.owner})", markup=False)
