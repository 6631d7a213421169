"""Tenants, API keys and prices as people write them: in the YAML file, in JSON and on the command line.

A budget is `<amount>tokens/<day, week or month>` or `$<amount>/<…>`, an expiry a date or time of UTC.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Self, get_args

from msgspec import structs
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator

from app.ids import TenantId
from app.tenants.api_keys import TENANT_NAME
from app.tenants.limit_table import ROWS, Budget, Kind, Period, TenantLimits, Unit
from app.tenants.records import Price, Tenant

_UNITS, _PERIODS = "|".join(get_args(Unit)), "|".join(get_args(Period))
_BUDGET = re.compile(rf"(\$?)([0-9]{{1,15}}(?:\.[0-9]{{1,6}})?) ?({_UNITS}|)/({_PERIODS})")
_SHA256 = r"^[0-9a-f]{64}$"


def read_budget(text: str) -> Budget:
    """Raises: ValueError."""
    match = _BUDGET.fullmatch(text)
    # `$` is a unit, which stands before the amount; whatever the currency of the prices is.
    if match is None or bool(match[1]) == bool(match[3]) or float(match[2]) <= 0:
        raise ValueError("has to be such as 1000000tokens/month or $50/day")
    return Budget(float(match[2]), match[3] or "money", match[4])  # type: ignore[arg-type] # by the expression


def show_budget(budget: Budget) -> str:
    amount = f"{budget.amount:.6f}".rstrip("0").rstrip(".")
    return f"${amount}/{budget.per}" if budget.unit == "money" else f"{amount}{budget.unit}/{budget.per}"


def read_time(text: str) -> float:
    """Raises: ValueError."""
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("has to be a date such as 2027-01-31, or a time such as 2027-01-31T12:00") from None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def show_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().removesuffix("+00:00") + "Z"


def _checked(read: Any) -> AfterValidator:
    def check(text: str) -> str:
        read(text)
        return text

    return AfterValidator(check)


def _words(value: Any) -> Any:
    """The command line has names with commas between."""
    return [word.strip() for word in value.split(",") if word.strip()] if isinstance(value, str) else value


def _printable(name: str) -> str:
    if not name.strip() or not name.isprintable():
        raise ValueError("has to have 1 to 64 printable characters")
    return name


TenantName = Annotated[str, Field(pattern=TENANT_NAME)]
ModelName = Annotated[str, Field(min_length=1, max_length=200)]
KeyName = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_printable)]
Sha256 = Annotated[str, Field(pattern=_SHA256)]  # of the key itself, in hexadecimal digits
_Count = Annotated[int, Field(ge=1, lt=2**31)]
_Money = Annotated[float, Field(ge=0, lt=1e9)]


# By the kind of a limit's row.
_WRITTEN: dict[Kind, Any] = {
    "models": Annotated[list[ModelName], Field(max_length=1000), BeforeValidator(_words)],
    "count": _Count,
    "bytes": Annotated[int, Field(ge=0, lt=2**53)],
    "priority": Annotated[int, Field(ge=-(2**31), lt=2**31)],
    "least priority": Annotated[int, Field(ge=-(2**31), le=0)],
    "budget": Annotated[str, _checked(read_budget)],
    "time": Annotated[str, _checked(read_time)],
}
_READ: dict[Kind, Callable[[Any], Any]] = {"budget": read_budget, "time": read_time}
_SHOWN: dict[Kind, Callable[[Any], Any]] = {"budget": show_budget, "time": show_time}
_ORDERED = (("min_priority", "default_priority"), ("default_max_tokens", "max_tokens"))


class Wanted(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


if TYPE_CHECKING:
    _Fields = Wanted  # has no types of fields that come from a table
else:
    _Fields = create_model(
        "_Fields",
        __base__=Wanted,
        **{name: (_WRITTEN[row.kind] | None, Field(None, description=row.help)) for name, row in ROWS.items()},
    )


class WantedLimits(_Fields):
    """Null: no limit here."""

    @model_validator(mode="after")
    def _fit(self) -> Self:
        for low, high in _ORDERED:
            least, most = getattr(self, low), getattr(self, high)
            if None not in (least, most) and most < least:
                raise ValueError(f"{high}={most} is less than {low}={least}")
        return self

    def limits(self) -> TenantLimits:
        return TenantLimits(**_converted(_READ, {name: getattr(self, name) for name in ROWS}))


def shown(limits: TenantLimits) -> dict[str, Any]:
    """The limits that there are, as `WantedLimits` reads them."""
    return _converted(_SHOWN, structs.asdict(limits))


def _converted(convert: dict[Kind, Callable[[Any], Any]], limits: dict[str, Any]) -> dict[str, Any]:
    return {
        name: convert.get(ROWS[name].kind, lambda value: value)(value)
        for name, value in limits.items()
        if value is not None
    }


class WantedTenant(WantedLimits):
    weight: Annotated[float, Field(gt=0, le=1e6)] = 1.0  # its share of a full fleet, beside the others'
    content_logged: bool = False  # it agreed that prompts and answers are logged

    def record(self, name: str, now: float, old: Tenant | None = None) -> Tenant:
        """`old`: as it was; None: it is new. `now`: seconds since the epoch."""
        before = Tenant(TenantId(name), now) if old is None else old
        return structs.replace(before, weight=self.weight, limits=self.limits(), content_logged=self.content_logged)


def shown_tenant(tenant: Tenant) -> dict[str, Any]:
    return {"weight": tenant.weight, "content_logged": tenant.content_logged, **shown(tenant.limits)}


class WantedKey(WantedLimits):
    """A key in the file, below its tenant. Without `sha256` it is a key that exists."""

    sha256: Sha256 | None = None


class WantedPrice(Wanted):
    """Money for a million tokens, and for one picture."""

    input: _Money = 0.0  # also of embeddings
    cached_input: _Money | None = None  # null: as `input`
    output: _Money = 0.0
    image: _Money = 0.0

    def record(self) -> Price:
        return Price(**self.model_dump())


class TenantInFile(WantedTenant):
    keys: dict[KeyName, WantedKey] = Field(default_factory=dict)


class TenantsFile(Wanted):
    """A part that is missing stays as it is."""

    tenants: dict[TenantName, TenantInFile] | None = None
    prices: Annotated[dict[ModelName, WantedPrice], Field(max_length=10_000)] | None = None
