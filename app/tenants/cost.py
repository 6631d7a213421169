"""Computes what a request costs. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from app.tenants.records import Price

_PER = 1_000_000  # tokens that a price is for
_FREE = Price()


class Used(Struct, frozen=True):
    """One request's use of a model."""

    model: str
    prompt: int = 0  # tokens, with the cached ones
    cached: int = 0
    completion: int = 0
    pictures: int = 0
    parent: str | None = None  # the model that it is an adapter for, whose price it has without one of its own


class Expense(NamedTuple):
    tokens: int = 0  # of prompts and answers
    money: float = 0.0

    def plus(self, other: "Expense") -> "Expense":
        return Expense(self.tokens + other.tokens, self.money + other.money)


NOTHING = Expense()


def price_of(prices: Mapping[str, Price], usage: Used) -> Price:
    """A model without a price costs nothing."""
    return prices.get(usage.model) or prices.get(usage.parent or "") or _FREE


def cost(usage: Used, price: Price) -> Expense:
    cached_tokens = min(
        usage.cached, usage.prompt
    )  # of a prompt that was computed twice, the cached tokens may be more
    of_cached = price.input if price.cached_input is None else price.cached_input
    tokens = (usage.prompt - cached_tokens) * price.input + cached_tokens * of_cached + usage.completion * price.output
    return Expense(usage.prompt + usage.completion, tokens / _PER + usage.pictures * price.image)
