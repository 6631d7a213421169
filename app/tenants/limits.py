"""Applies limits to one request. Pure; what is counted over requests is the ledger's."""

from collections.abc import Callable
from typing import Any

from app.errors import ModelNotFound, RequestError
from app.tenants.limit_table import ROWS, UNLIMITED, TenantLimits, Together

# Fields that say how long an answer may be, in all endpoints.
_MOST_TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_HOW: dict[Together, Callable[[Any, Any], Any]] = {
    "the less": min,
    "the greater": max,
    "the key's": lambda _, key: key,
    "in both": lambda tenant, key: [name for name in key if name in tenant],
}
_COMBINED = {name: _HOW[row.together] for name, row in ROWS.items() if row.together != "counted apart"}
_SHOWN = 100  # characters of a model's name in an error


def together(tenant: TenantLimits, key: TenantLimits) -> TenantLimits:
    """Limits of a key's requests, as the table says how the tenant's and its own combine."""
    limits = TenantLimits(
        **{name: _one(how, getattr(tenant, name), getattr(key, name)) for name, how in _COMBINED.items()}
    )
    return UNLIMITED if limits == UNLIMITED else limits


def _one(how: Callable[[Any, Any], Any], tenant: Any, key: Any) -> Any:
    if tenant is None or key is None:
        return tenant if key is None else key
    return how(tenant, key)


def may_ask(limits: TenantLimits, model: str) -> bool:
    return limits.models is None or model in limits.models


def check_model(limits: TenantLimits, model: str) -> None:
    """Checks whether the client may ask for a model. Raises: ModelNotFound.

    The error has OpenAI's words, which don't tell whether there is such a model.
    """
    if not may_ask(limits, model):
        raise ModelNotFound(
            f"The model '{model[:_SHOWN]}' does not exist or you do not have access to it.", param="model"
        )


def check_tokens(limits: TenantLimits, body: object) -> None:
    """Raises: RequestError for a longer answer than is allowed."""
    most = limits.max_tokens
    for name in _MOST_TOKENS if most is not None else ():
        tokens = getattr(body, name, None)
        if tokens is not None and tokens > most:
            raise RequestError(f"'{name}': {tokens} is over {most}, the most for this client.", param=name)


def usual_priority(limits: TenantLimits) -> int | None:
    """The priority of a request that asks for none. None: the service's own."""
    usual, least = limits.default_priority, limits.min_priority
    return usual if usual is None or least is None else max(usual, least)


def answer_tokens(limits: TenantLimits, usual: int | None) -> int | None:
    """The most tokens of an answer whose request names none; `usual`: without limits. None: no bound."""
    usual = usual if limits.default_max_tokens is None else limits.default_max_tokens
    bounds = [bound for bound in (usual, limits.max_tokens) if bound is not None]
    return min(bounds, default=None)


def begun_before(limits: TenantLimits) -> TenantLimits:
    """Limits of a request that was checked when it came: how long its answer may be is the same as then."""
    return TenantLimits(default_max_tokens=limits.default_max_tokens, max_tokens=limits.max_tokens)
