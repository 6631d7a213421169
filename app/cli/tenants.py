"""`xylem tenants`: the teams that share the fleet."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from app.cli.erase import erase_tenant, isolate
from app.cli.limit_options import listed, read, with_limits
from app.cli.report import err, listing, out, refuse
from app.cli.tenant_store import tenant_store

if TYPE_CHECKING:
    from app.tenants.diff import Plan
    from app.tenants.registry import Registry

tenants = typer.Typer(
    name="tenants",
    help="Teams that share the fleet: their limits, shares and prices. Stored in the Redis of XYLEM_REDIS_URL.",
    no_args_is_help=True,
)
Name = Annotated[str, typer.Argument(help="As `xylem tenants list` shows it.")]
_MARKS = {"added": "[green]+[/]", "changed": "[yellow]~[/]", "removed": "[red]-[/]"}


tenants.command("erase")(erase_tenant)
tenants.command()(isolate)


@tenants.command("list")
def show_all() -> None:
    """Show all tenants: their shares, how many keys they have, and their limits."""
    from rich.table import Column

    from app.tenants.records import DEFAULT, Tenant
    from app.tenants.wanted import shown

    with tenant_store() as store:
        now = store.now
    columns = (Column(name, no_wrap=True) for name in ("name", "weight", "keys"))
    table = listing(*columns, "limits")
    all_tenants = {DEFAULT: Tenant(DEFAULT), **now.tenants}
    for name, tenant in sorted(all_tenants.items()):
        table.add_row(name, f"{tenant.weight:g}", str(len(now.keys_of(name))), listed(shown(tenant.limits)))
    out.print(table)


@tenants.command()
def show(name: Name) -> None:
    """Show one as YAML, as a file for `apply` has it, with its keys."""
    from app.ids import TenantId

    with tenant_store() as store:
        now = store.now
    if not now.has(TenantId(name)):
        _unknown(name)
    _show_one(now, name)


def _show_one(now: "Registry", name: str) -> None:
    import yaml

    from app.ids import TenantId
    from app.tenants.records import Tenant
    from app.tenants.wanted import shown, shown_tenant

    tenant = now.tenants.get(TenantId(name)) or Tenant(TenantId(name))
    keys = {key.name: {"sha256": key.digest.hex(), **shown(key.limits)} for key in now.keys_of(tenant.name)}
    typer.echo(yaml.safe_dump({"tenants": {name: {**shown_tenant(tenant), "keys": keys}}}, sort_keys=False), nl=False)


@tenants.command("set")
@with_limits
def set_(
    name: Annotated[str, typer.Argument(help="Of letters, digits, dots, dashes and underscores.")],
    limits: dict[str, str],
    weight: Annotated[str | None, typer.Option("--weight", metavar="N", help="Its share of a full fleet.")] = None,
    content_logged: Annotated[
        bool | None,
        typer.Option("--content-logged/--no-content-logged", help="It agreed that prompts and answers are logged."),
    ] = None,
) -> None:
    """Make a tenant, or change one, within two seconds, and show it. `none` takes a limit away; the rest stays."""
    import time

    from app.errors import RequestError
    from app.ids import TenantId
    from app.tenants.api_keys import check_tenant_name
    from app.tenants.registry import put_tenant
    from app.tenants.wanted import WantedTenant, shown_tenant

    options = limits if weight is None else {**limits, "weight": weight}
    options = options if content_logged is None else {**options, "content_logged": str(content_logged).lower()}
    with tenant_store() as store:
        now = store.now
        old = now.tenants.get(TenantId(name))
        if old is None:
            try:
                check_tenant_name(name)
            except RequestError as exc:
                refuse(exc.message)
        fields = read(WantedTenant, options, None if old is None else shown_tenant(old))
        tenant = fields.record(name, time.time(), old)
        store.change([put_tenant(tenant)], "tenants set", name, options)
        _show_one(store.now, name)
        store.warn(name, tenant.limits)


@tenants.command()
def remove(name: Name) -> None:
    """Remove a tenant that has no keys any more."""
    from app.ids import TenantId
    from app.tenants.registry import drop_tenant

    with tenant_store() as store:
        now = store.now
        if TenantId(name) not in now.tenants:
            _unknown(name)
        if keys := now.keys_of(TenantId(name)):
            refuse(f"{name} has {len(keys)} keys, such as {keys[0].name}: xylem keys revoke", code=1)
        store.change([drop_tenant(name)], "tenants remove", name, {})
    err.print(f"removed {name}", markup=False)


@tenants.command()
def apply(
    file: Annotated[Path, typer.Argument(help="YAML with `tenants` and `prices`.")],
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    prune: Annotated[bool, typer.Option("--prune", help="Also remove keys that the file doesn't name.")] = False,
) -> None:
    """Make tenants, keys and prices those of a file: shows what changes, and changes all of it or nothing.

    Tenants and prices that the file doesn't name are removed; keys only with --prune, and a tenant that has such keys
    stays, too.
    """
    import time
    from itertools import repeat

    from app.errors import SettingsError
    from app.ids import TenantId, new_key_id
    from app.tenants.diff import planned
    from app.tenants.tenants_file import load_tenants

    try:
        tenants_file = load_tenants(file)
        with tenant_store() as store:
            plan = planned(
                store.now, tenants_file, prune=prune, at=time.time(), new_id=(new_key_id() for _ in repeat(None))
            )
            _show(plan)
            if not plan.changes or dry_run:
                return
            if not yes and not typer.confirm("Apply?", err=True):
                refuse("nothing was changed", code=1)
            detail = {kind: [d.target for d in plan.differences if d.kind == kind] for kind in _MARKS}
            store.change(plan.changes, "tenants apply", file.name, detail)
            for name in tenants_file.tenants or ():
                store.warn(name, store.now.tenants[TenantId(name)].limits)
    except SettingsError as exc:
        refuse(exc.message)
    err.print(f"applied {len(plan.changes)} changes", markup=False)


def _show(plan: "Plan") -> None:
    from rich.markup import escape

    for difference in plan.differences:
        out.print(f"{_MARKS[difference.kind]} {escape(difference.target)}", soft_wrap=True)
        for field, (before, after) in difference.details.items() if difference.kind != "removed" else ():
            old = "" if before is None else f"{before} → "
            out.print(f"    {field}: {old}{NOTHING if after is None else after}", markup=False, soft_wrap=True)
    for text in plan.kept:
        err.print(f"kept: {text}", markup=False)
    if not plan.differences:
        err.print("nothing changes", markup=False)


NOTHING = "none"


@tenants.command()
def prices(
    model: Annotated[str | None, typer.Argument(help="The model whose price is set; all are shown without it.")] = None,
    input_: Annotated[str | None, typer.Option("--input", help="Of a million tokens of prompts.")] = None,
    cached_input: Annotated[str | None, typer.Option("--cached-input", help="Of those that a cache had.")] = None,
    output: Annotated[str | None, typer.Option("--output", help="Of a million tokens of answers.")] = None,
    image: Annotated[str | None, typer.Option("--image", help="Of one picture.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="The model has no price any more.")] = False,
) -> None:
    """Show or set what models cost, in money of any kind, for budgets of money."""

    from app.tenants.registry import drop_price, put_price
    from app.tenants.wanted import WantedPrice

    options = {"input": input_, "cached_input": cached_input, "output": output, "image": image}
    amounts = {name: value for name, value in options.items() if value is not None}
    with tenant_store() as store:
        if model is not None and (amounts or remove):
            update = drop_price(model) if remove else put_price(model, read(WantedPrice, amounts).record())
            store.change([update], "tenants prices", model, {"remove": True} if remove else amounts)
        stored_prices = store.now.prices
    table = listing("model", *(name.replace("_", " ") for name in options))
    for name, price in sorted(stored_prices.items()):
        if model in (None, name):
            cells = (getattr(price, field) for field in options)
            table.add_row(name, *("as input" if cell is None else f"{cell:g}" for cell in cells))
    out.print(table)


@tenants.command()
def audit(
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many of the latest entries.")] = 50,
) -> None:
    """Show who has changed what, the newest last."""
    from app.tenants.audit import read_command
    from app.tenants.audit import shown as entries

    with tenant_store() as store:
        replies = store.execute(read_command(store.names, "", limit, newest_first=True))
    for entry in reversed(entries(replies)):
        at = datetime.fromtimestamp(entry["when"], UTC).strftime("%Y-%m-%d %H:%M:%S")
        outcome = "" if entry["outcome"] == "ok" else f" ({entry['outcome']})"
        line = f"{at}  {entry['who']}  {entry['action']}  {entry['target']}{outcome}  {entry['detail']}"
        out.print(line, markup=False, soft_wrap=True)


def _unknown(name: str) -> NoReturn:
    refuse(f"there is no tenant '{name}': xylem tenants list", code=1)
