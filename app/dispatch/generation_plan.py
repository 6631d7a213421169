"""A request that generates or encodes, understood: what is to be done for it, before anything is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from app.dispatch.inflight import RoutingHints
from app.dispatch.models import Model
from app.messages import Inputs, Sampling


@dataclass(frozen=True)
class GenerationPlan:
    """Choice i of prompt p has number p * n + i."""

    prefix: str  # of its id
    model: Model
    prompts: Sequence[list[int]]
    sampling: Sequence[Sampling]  # for each prompt
    timeout_s: float
    priority: int = 0
    cache_salt: str | None = None
    wishes: RoutingHints = RoutingHints()  # noqa: RUF009 (frozen)
    aside: bool = False  # gives way to online requests
    whole: bool = False  # nobody reads along
    tier: Literal["default", "flex"] | None = None  # what the answer says, if the request named one
    echo: Sequence[str] | None = None  # the texts of the prompts, if each choice begins with its own
    inputs: Sequence[Inputs] = ()  # what each prompt consists of, if the request generates nothing
    generates: bool = True  # else the one token that engines generate all the same is neither shown nor counted

    @property
    def choices(self) -> int:
        return len(self.prompts) * self.sampling[0].n
