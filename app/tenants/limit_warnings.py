"""Warns of limits that do nothing as things are. Pure."""

from collections.abc import Mapping

from app.tenants.limit_table import UNLIMITED, TenantLimits
from app.tenants.records import Price


def limit_warnings(limits: TenantLimits, prices: Mapping[str, Price], *, keys_required: bool | None) -> list[str]:
    """`keys_required`: whether the API requires keys; None: nobody knows here."""
    warnings: list[str] = []
    if limits.budget is not None and limits.budget.unit == "money":
        models = [model for model in limits.models or () if model not in prices]
        if not prices:
            warnings.append("its budget is of money, and no model has a price, so that nothing is charged")
        elif models:
            warnings.append(f"its budget is of money, and these have no price of their own: {', '.join(models)}")
    if limits != UNLIMITED and keys_required is False:
        warnings.append("limits hold where the API requires keys, and XYLEM_REQUIRE_KEYS is not on")
    return warnings
