"""The limits of tenants and keys as options of commands, one for each row of their table."""

import inspect
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from app.cli.report import refuse
from app.tenants.limit_table import ROWS

if TYPE_CHECKING:
    from app.tenants.wanted import Wanted

W = TypeVar("W", bound="Wanted")

NONE = "none"  # the value that takes a limit away
_METAVARS = {"models": "A,B", "budget": "AMOUNT/PERIOD", "time": "DATE"}
_TIMES = {name for name, row in ROWS.items() if row.kind == "time"}
_DAYS = re.compile("([0-9]{1,5})d")


def flag(name: str) -> str:
    """`--batch-rpm` of `batch_requests_per_min`."""
    short = name.replace("requests_per_min", "rpm").replace("tokens_per_min", "tpm")
    return f"--{short.replace('_', '-')}"


def with_limits(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options. The command gets those that were given as `limits`, by name."""

    @wraps(command)
    def run(**values: Any) -> None:
        limits = {name: value for name in ROWS if (value := values.pop(name)) is not None}
        command(**values, limits=limits)

    own = [p for p in inspect.signature(command).parameters.values() if p.name != "limits"]
    options = []
    for name, row in ROWS.items():
        option = typer.Option(flag(name), help=row.help, metavar=_METAVARS.get(row.kind, "N"))
        kind = Annotated[str | None, option]
        options.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind))
    signature = inspect.Signature([*(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own), *options])
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    del run.__wrapped__
    return run


def read(schema: "type[W]", options: Mapping[str, str], before: Mapping[str, Any] | None = None) -> "W":
    """Reads these options, with the fields of `before` for those that were not given. Refuses what is wrong."""
    from pydantic import ValidationError

    from app.settings import explain

    texts = {name: _date(value) if name in _TIMES else value for name, value in options.items() if value != NONE}
    try:
        new_fields = schema.model_validate_strings(texts).model_dump(exclude_unset=True)
        old_fields = {name: value for name, value in (before or {}).items() if options.get(name) != NONE}
        return schema.model_validate({**old_fields, **new_fields})
    except ValidationError as exc:
        refuse(explain(exc, lambda path: flag(path[0]) if path else "limits"))


def _date(text: str) -> str:
    """`30d` is in thirty days."""
    match = _DAYS.fullmatch(text)
    if match is None:
        return text
    return (datetime.now(UTC) + timedelta(days=int(match[1]))).replace(microsecond=0).isoformat()


def listed(limits: Mapping[str, Any]) -> str:
    """Limits as a table shows them."""
    texts = (f"{flag(name)[2:]} {','.join(v) if isinstance(v, list) else v}" for name, v in limits.items())
    return ", ".join(texts) or NONE
