"""A checked request that generates, encodes or paints: all that dispatch needs to know of it."""

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct

from app.dispatch.inflight import RoutingHints
from app.dispatch.media.media_reader import NO_SAMPLES, Samples
from app.dispatch.models.models import Model
from app.grammars.checker import GrammarCheck
from app.messages.job import Inputs, Painting, Sampling
from app.messages.media import Media
from app.tenants.cost import Used


class NamesBody(Protocol):
    """A request's body, which pydantic can write."""

    def model_dump_json(self, *, exclude_none: bool, by_alias: bool, serialize_as_any: bool) -> str: ...


class GenerationPlan(Struct, frozen=True):
    """Choice i of prompt p has number p * n + i."""

    prefix: str  # of its id
    model: Model
    prompts: Sequence[list[int]]
    sampling: Sequence[Sampling]  # for each prompt
    timeout_s: float
    priority: int = 0
    cache_salt: str | None = None
    wishes: RoutingHints = RoutingHints()
    aside: bool = False  # gives way to online requests
    whole: bool = False  # it isn't streamed
    tier: Literal["default", "flex"] | None = None  # the answer's `service_tier`, if the request named one
    echo: Sequence[str] | None = None  # the prompts' texts, if each choice begins with its prompt
    inputs: Sequence[Inputs] = ()  # each prompt's inputs, if the request is encoded
    media: Sequence[Sequence[Media]] = ()  # in each prompt, if any has some
    written: Sequence[list[int]] = ()  # each prompt as in `Job.written`, if any has media
    samples: Samples = NO_SAMPLES  # of all of these, and of those that a shortened conversation left out
    paintings: Sequence[Painting] = ()  # one for each prompt, which is empty then
    revised_prompt: str | None = None  # of what is painted, if an answer shows it
    asked: NamesBody | None = None  # the body, as the schema that the plan is made of; conversations are a chat's
    generates: bool = True  # False: engines generate one token all the same, which is neither shown nor counted
    grammars: Sequence[GrammarCheck] = ()  # to be checked before it is placed
    effort: str | None = None  # of reasoning, if it is another than the request's
    priced_as: str = ""  # the model whose price it has, if the answer names another
    ignored: Sequence[str] = ()  # fields of the body that change nothing with this model

    @property
    def headers(self) -> dict[str, str]:
        headers = {} if self.effort is None else {"x-xylem-reasoning-effort": self.effort}
        return headers | ({"x-xylem-ignored": ", ".join(self.ignored)} if self.ignored else {})

    @property
    def answer_tokens(self) -> int:
        """The most that its answer may cost."""
        return sum(one.seats * one.max_tokens for one in self.sampling) if self.generates else 0

    def used(
        self, cached_tokens: int = 0, completion: int = 0, pictures: int | None = None, prompt: int | None = None
    ) -> Used:
        """The request's usage; without arguments, as much as is known of it before it begins."""
        pictures = len(self.paintings) if pictures is None else pictures
        model = self.priced_as or self.model.name
        prompt = sum(map(len, self.prompts)) if prompt is None else prompt
        return Used(model, prompt, cached_tokens, completion=completion, pictures=pictures, parent=self.model.parent)

    @property
    def params(self) -> dict[str, str]:
        """The name of the request's first part with each of its samples, by the sample's SHA-256."""
        return {one.media.sha256: one.param for one in reversed([*self.samples.values()]) if one.param}
