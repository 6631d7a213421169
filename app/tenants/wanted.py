"""Tenants, API keys and prices as people write them: in the YAML file, in JSON and on the command line.

A budget is `<amount><tokens or money>/<day, week or month>`, an expiry a date or time of UTC.
"""

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Self, get_args

from msgspec import structs
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from app.ids import TenantId
from app.tenants.api_keys import TENANT_NAME
from app.tenants.limit_help import HELP
from app.tenants.records import Budget, Limits, Period, Price, Tenant, Unit

_UNITS, _PERIODS = "|".join(get_args(Unit)), "|".join(get_args(Period))
_BUDGET = re.compile(rf"([0-9]{{1,15}}(?:\.[0-9]{{1,6}})?) ?({_UNITS})/({_PERIODS})")
_SHA256 = r"^[0-9a-f]{64}$"


def read_budget(text: str) -> Budget:
    """Raises: ValueError."""
    match = _BUDGET.fullmatch(text)
    if match is None or float(match[1]) <= 0:
        raise ValueError("has to be such as 1000000tokens/month or 50money/day")
    return Budget(float(match[1]), match[2], match[3])  # type: ignore[arg-type] # by the expression


def show_budget(budget: Budget) -> str:
    return f"{budget.amount:.6f}".rstrip("0").rstrip(".") + f"{budget.unit}/{budget.per}"


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
_Bytes = Annotated[int, Field(ge=0, lt=2**53)]
_Money = Annotated[float, Field(ge=0, lt=1e9)]
_Priority = Annotated[int, Field(ge=-(2**31), le=0)]


def _described(schema: dict[str, Any]) -> None:
    for name, field in schema["properties"].items():
        if name in HELP:
            field["description"] = HELP[name]


class Wanted(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, json_schema_extra=_described
    )


class WantedLimits(Wanted):
    """Null: no limit here."""

    models: Annotated[list[ModelName], Field(max_length=1000), BeforeValidator(_words)] | None = None
    requests_per_min: _Count | None = None
    tokens_per_min: _Count | None = None
    parallel: _Count | None = None
    budget: Annotated[str, _checked(read_budget)] | None = None
    min_priority: _Priority | None = None
    default_priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    default_max_tokens: _Count | None = None
    max_tokens: _Count | None = None
    batch_requests_per_min: _Count | None = None
    batch_tokens_per_min: _Count | None = None
    batch_lines: _Count | None = None
    file_quota: _Bytes | None = None
    keep_bytes: _Bytes | None = None
    expires: Annotated[str, _checked(read_time)] | None = None

    @model_validator(mode="after")
    def _fit(self) -> Self:
        for name, least in (("default_priority", self.min_priority), ("max_tokens", self.default_max_tokens)):
            value = getattr(self, name)
            if value is not None and least is not None and value < least:
                other = "min_priority" if name == "default_priority" else "default_max_tokens"
                raise ValueError(f"{name}={value} is less than {other}={least}")
        return self

    def limits(self) -> Limits:
        values = {name: getattr(self, name) for name in Limits.__struct_fields__}
        budget, expires = self.budget, self.expires
        return Limits(
            **values
            | {
                "budget": None if budget is None else read_budget(budget),
                "expires": None if expires is None else read_time(expires),
            }
        )


def shown(limits: Limits) -> dict[str, Any]:
    """The limits that there are, as `WantedLimits` reads them."""
    values = {name: value for name, value in structs.asdict(limits).items() if value is not None}
    if limits.budget is not None:
        values["budget"] = show_budget(limits.budget)
    if limits.expires is not None:
        values["expires"] = show_time(limits.expires)
    return values


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
    keys: dict[KeyName, WantedKey] = {}


class TenantsFile(Wanted):
    """A part that is missing stays as it is."""

    tenants: dict[TenantName, TenantInFile] | None = None
    prices: Annotated[dict[ModelName, WantedPrice], Field(max_length=10_000)] | None = None
