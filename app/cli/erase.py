"""`xylem keys erase`, `xylem tenants erase` and `isolate`: by a running API, which goes on if the command is ended."""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from app.cli.client import HERE, AdminKey, Url, admin_key, checked, connected
from app.cli.report import err, refuse

ClearKv = Annotated[
    bool, typer.Option("--clear-kv", help="Workers also forget all KV in their engines and hosts' memories.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")]
_WAIT_S = 30  # of one question to the API


def erase_key(
    name: Annotated[str, typer.Argument(help="The key's name, or its id, also of a revoked one.")],
    yes: Yes = False,
    clear_kv: ClearKv = False,
    url: Url = HERE,
    key: AdminKey = None,
) -> None:
    """Revoke a key, and remove all that was made with it: files, batches, answers, conversations."""
    _erase("keys", f"the key '{name}'", name, url, key, yes=yes, clear_kv=clear_kv)


def erase_tenant(
    name: Annotated[str, typer.Argument(help="The tenant's name.")],
    yes: Yes = False,
    clear_kv: ClearKv = False,
    url: Url = HERE,
    key: AdminKey = None,
) -> None:
    """Remove a tenant, its keys, and all that was made with them."""
    _erase("tenants", f"the tenant '{name}' with all its keys", name, url, key, yes=yes, clear_kv=clear_kv)


def isolate(
    name: Annotated[str, typer.Argument(help="The tenant's name.")],
    off: Annotated[bool, typer.Option("--off", help="It shares KV again.")] = False,
    url: Url = HERE,
    key: AdminKey = None,
) -> None:
    """Give a tenant KV of its own: no other tenant finds, or notices, what its prompts have left in caches."""
    with connected(url, admin_key(url, key)) as client:
        checked(client.post(f"/admin/tenants/{quote(name, safe='')}/isolation", json={"isolated": not off}))
    err.print(f"{name} {'shares KV with others' if off else 'has KV of its own'}", markup=False)


def _erase(of: str, what: str, name: str, url: str, key: str | None, *, yes: bool, clear_kv: bool) -> None:
    if not yes and not typer.confirm(f"Erase {what}, and all that was made with it? This can't be undone.", err=True):
        refuse("nothing was erased", code=1)
    path, options = f"/admin/{of}/{quote(name, safe='')}/erase", {"clear_kv": clear_kv, "wait_s": _WAIT_S}
    with connected(url, admin_key(url, key)) as client:
        while (answer := checked(client.post(path, json=options)))["status"] != "done":
            if answer["status"] == "failed":
                refuse(f"not erased: {answer['reason']}", code=1)
            err.print(f"removed so far: {_counts(answer)}", markup=False)
    err.print(f"erased {name}: {_counts(answer)}", markup=False)
    for worker, why in answer["kv_not_cleared"].items():
        err.print(f"{worker} has not cleared its KV: {why}", markup=False)


def _counts(answer: dict[str, Any]) -> str:
    counts = dict(answer["removed"])
    counts |= {f"KV blocks of {pool}'s store": n for pool, n in answer["kv_blocks"].items()}
    return ", ".join(f"{'?' if n is None else n} {what}" for what, n in counts.items()) or "nothing"
