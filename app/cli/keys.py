"""`xylem keys`: the keys of the API's clients."""

from datetime import datetime
from typing import Annotated, NoReturn

import typer

from app.cli.erase import erase_key
from app.cli.limit_options import listed, read, with_limits
from app.cli.report import err, listing, out, refuse
from app.cli.tenant_store import tenant_store

keys = typer.Typer(
    name="keys",
    help="Keys for the API, which requires them if XYLEM_REQUIRE_KEYS is on. Stored in the Redis of XYLEM_REDIS_URL.",
    no_args_is_help=True,
)
DEFAULT = "default"

Owner = Annotated[str, typer.Argument(help="Its owner's name.")]
Name = Annotated[str, typer.Argument(help="As `xylem keys list` shows it.")]
InTenant = Annotated[str, typer.Option("--tenant", help="The team that it belongs to, of `xylem tenants list`.")]

keys.command("erase")(erase_key)


@keys.command()
@with_limits
def create(name: Owner, limits: dict[str, str], tenant: InTenant = DEFAULT) -> None:
    """Make a key and print it, this once: only a digest of it is stored."""
    from app.tenants.api_keys import digest_of, new_token

    token = new_token()
    _add(name, tenant, digest_of(token), limits, "create")
    typer.echo(token)  # and nothing else to stdout, so that scripts can take it
    err.print("[dim]Keep it: it can't be shown again. It is valid within two seconds.[/]")


@keys.command("import")
@with_limits
def import_(
    name: Owner,
    limits: dict[str, str],
    sha256: Annotated[str, typer.Option("--sha256", help="Of the key itself, as 64 hexadecimal digits.")],
    tenant: InTenant = DEFAULT,
) -> None:
    """Take a key that clients have already, such as another service's, by its SHA-256. Nothing else of it is needed."""
    from app.tenants.wanted import WantedKey

    read(WantedKey, {"sha256": sha256})
    _add(name, tenant, bytes.fromhex(sha256), limits, "import")
    err.print(f"imported {name}; it is valid within two seconds", markup=False)


def _add(name: str, tenant: str, digest: bytes, options: dict[str, str], action: str) -> None:
    import time

    from app.errors import XylemError
    from app.tenants.api_keys import check_name, new_key
    from app.tenants.registry import put_key
    from app.tenants.wanted import WantedLimits, shown

    limits = read(WantedLimits, options).limits()
    try:
        check_name(name)
        with tenant_store() as store:
            key = new_key(store.now, name, tenant, digest, limits, at=time.time())
            store.change([put_key(key)], f"keys {action}", name, {"tenant": tenant, **shown(limits)})
            store.warn(name, limits)
    except XylemError as exc:
        refuse(exc.message, code=2 if exc.param == "name" else 1)


@keys.command("set")
@with_limits
def set_(
    name: Name,
    limits: dict[str, str],
    tenant: Annotated[str | None, typer.Option("--tenant", help="Another team that it belongs to from now on.")] = None,
) -> None:
    """Change limits of a key, on every API replica within two seconds. `none` takes one away; the others stay."""
    from msgspec import structs

    from app.tenants.api_keys import check_tenant, with_limits
    from app.tenants.registry import put_key
    from app.tenants.wanted import WantedLimits, shown

    with tenant_store() as store:
        now = store.now
        old = now.keys.get(name) or _unknown(name)
        new_limits = read(WantedLimits, limits, shown(old.limits)).limits()
        record = structs.replace(old, tenant=old.tenant if tenant is None else check_tenant(now, tenant))
        detail = limits if tenant is None else {"tenant": tenant, **limits}
        store.change([put_key(with_limits(record, new_limits))], "keys set", name, detail)
        err.print(f"{name}: {listed(shown(new_limits))}", markup=False, soft_wrap=True)
        store.warn(name, new_limits)


@keys.command("list")
def show() -> None:
    """Show the names, ids, tenants, ages and limits of all keys."""
    from rich.markup import escape
    from rich.table import Column

    from app.tenants.wanted import shown

    with tenant_store() as store:
        records = store.now.keys.values()
    id_ = Column("id", no_wrap=True)  # to be copied
    table = listing("name", id_, "tenant", "created", "limits")
    for record in sorted(records, key=lambda r: r.created):
        created_at = datetime.fromtimestamp(record.created).astimezone().strftime("%Y-%m-%d %H:%M")
        cells = record.name, record.owner, record.tenant, created_at, listed(shown(record.limits))
        table.add_row(*map(escape, cells))
    out.print(table)


@keys.command()
def revoke(name: Name) -> None:
    """Make a key invalid on every API replica within two seconds. Its running requests are finished.

    Its files and batches stay until they expire, or `xylem keys erase`. A new key of the same name does not get them.
    """
    from app.tenants.registry import drop_key

    with tenant_store() as store:
        old = store.now.keys.get(name) or _unknown(name)
        store.change(drop_key(old), "keys revoke", name, {"id": old.owner})
    err.print(f"revoked {name} ({old.owner})", markup=False)


def _unknown(name: str) -> NoReturn:
    refuse(f"there is no key '{name}': xylem keys list", code=1)
