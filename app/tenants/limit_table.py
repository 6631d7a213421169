"""The limits of a tenant's keys together, or of one key: one row for each, which is a field of `TenantLimits`.

All else comes from the rows: how people write them (`wanted.py`), what they are shown (`tenant_schemas.py`), options of
the command line, the page of settings, and how those of a key and of its tenant combine (`limits.together`). The
command line loads this for its help, so that it loads nothing more than msgspec.
"""

from typing import Annotated, Literal, NamedTuple, get_type_hints

from msgspec import Meta, Struct

Period = Literal["day", "week", "month"]  # of UTC: weeks begin on Monday
Unit = Literal["tokens", "money"]
Kind = Literal["models", "count", "bytes", "priority", "least priority", "budget", "time"]
# The limit of a key's requests where its tenant has one, too. "counted apart": both hold, each with an account.
Together = Literal["the less", "the greater", "the key's", "in both", "counted apart"]


class Budget(Struct, frozen=True, array_like=True):
    """An amount that may be spent in a period. A new one begins with each day, week or month."""

    amount: float
    unit: Unit = "tokens"  # of prompts and answers; money: by `Price`
    per: Period = "month"


class LimitRow(NamedTuple):
    kind: Kind
    together: Together
    help: str


def _row(kind: Kind, together: Together, text: str) -> Meta:
    return Meta(description=text, extra={"kind": kind, "together": together})


class TenantLimits(Struct, frozen=True, array_like=True):
    """Limits of a tenant's keys together, or of one key.

    None: no limit here, but perhaps one of the tenant or the settings. A request has to be within its key's and its
    tenant's. Batches that have neither limit of their own are counted with the other requests.
    """

    models: Annotated[
        list[str] | None,  # names of aliases, adapters and pipelines count too
        _row("models", "in both", "Models that may be asked for, by the names that clients use, with commas between."),
    ] = None
    requests_per_min: Annotated[int | None, _row("count", "counted apart", "Requests a minute.")] = None
    tokens_per_min: Annotated[int | None, _row("count", "counted apart", "Tokens of prompts and answers a minute.")] = (
        None
    )
    parallel: Annotated[int | None, _row("count", "counted apart", "Requests at once.")] = None
    budget: Annotated[
        Budget | None,
        _row("budget", "counted apart", "What may be spent in a day, week or month: 1000000tokens/month, $50/day."),
    ] = None
    min_priority: Annotated[
        int | None,
        _row(
            "least priority",
            "the greater",
            "The most urgent priority that may be asked for, lower is sooner; XYLEM_MIN_PRIORITY if not given.",
        ),
    ] = None
    default_priority: Annotated[
        int | None, _row("priority", "the key's", "The priority of requests that ask for none.")
    ] = None
    default_max_tokens: Annotated[
        int | None, _row("count", "the key's", "The longest answer to requests that say nothing of it.")
    ] = None
    max_tokens: Annotated[int | None, _row("count", "the less", "The longest answer that may be asked for.")] = None
    batch_requests_per_min: Annotated[
        int | None, _row("count", "counted apart", "Batch requests a minute, apart from other requests' limits.")
    ] = None
    batch_tokens_per_min: Annotated[int | None, _row("count", "counted apart", "Tokens of batches a minute.")] = None
    batch_lines: Annotated[int | None, _row("count", "the less", "Requests of unfinished batches together.")] = None
    file_quota: Annotated[
        int | None, _row("bytes", "the less", "Bytes of all its files; XYLEM_FILE_QUOTA if not given.")
    ] = None
    keep_bytes: Annotated[
        int | None,
        _row("bytes", "the less", "Bytes of kept answers and conversations; XYLEM_KEEP_BYTES_PER_KEY if not given."),
    ] = None
    expires: Annotated[
        float | None,  # seconds since the epoch
        _row(
            "time",
            "the less",
            "The time from which on it is not valid, of UTC: 2027-01-31 or 2027-01-31T12:00; in days from now: 30d.",
        ),
    ] = None


def _rows() -> dict[str, LimitRow]:
    hints = get_type_hints(TenantLimits, include_extras=True)
    metas: dict[str, Meta] = {name: hints[name].__metadata__[0] for name in TenantLimits.__struct_fields__}
    return {name: LimitRow(**(meta.extra or {}), help=meta.description or "") for name, meta in metas.items()}


UNLIMITED = TenantLimits()
ROWS = _rows()
