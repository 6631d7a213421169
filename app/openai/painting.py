"""The common part of all endpoints that paint: sizes, steps and seeds, and one job for each picture or video."""

import secrets
from collections.abc import Sequence
from typing import Annotated

from msgspec.structs import replace
from pydantic import Field

from app.dispatch.asking import Asking
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.models.models import Model
from app.errors import RequestError
from app.messages.job import Painting, Sampling
from app.openai.plan import plan_of
from app.openai.schemas import ModelRequest
from app.pools.schema import PaintRules, parse_size

SEEDS = 2**32
_LONGEST = 32_000  # characters of a prompt, as OpenAI has it
_NO_OUTPUT = Sampling(max_tokens=0)

Prompt = Annotated[str, Field(min_length=1, max_length=_LONGEST)]
NegativePrompt = Annotated[str, Field(max_length=_LONGEST)]
Steps = Annotated[int, Field(ge=1)]
Guidance = Annotated[float, Field(ge=0, le=100)]
Seed = Annotated[int, Field(ge=0, lt=SEEDS)]


class PaintingRequest(ModelRequest):
    """The base of all requests that paint."""

    prompt: Prompt
    size: Annotated[str, Field(max_length=16)] | None = None  # "1024x768"; `auto`: as the pool says
    # Extensions, by the names that most servers of such models have.
    negative_prompt: NegativePrompt | None = None
    num_inference_steps: Steps | None = None
    guidance_scale: Guidance | None = None
    seed: Seed | None = None  # of the first picture; each next one has the next seed

    def understood(self) -> bytes:
        """The fields on which the answer depends, as JSON that parses to an equal request."""
        return self.model_dump_json(exclude_none=True).encode()


def begun_painting(body: PaintingRequest, model: Model, usual_steps: int | None = None) -> Painting:
    """Checks the request against the pool's limits. Raises: RequestError that names the field.

    `usual_steps`: if the request names no number; None: the pool's.
    """
    rules = model.painting
    width, height = _size(body.size, rules)
    steps = body.num_inference_steps
    if steps is not None and steps > rules.max_steps:
        raise RequestError(
            f"'num_inference_steps': {model.name} takes up to {rules.max_steps}, not {steps}.",
            param="num_inference_steps",
        )
    return Painting(
        body.prompt,
        width,
        height,
        steps=steps or usual_steps or rules.steps,
        seed=secrets.randbelow(SEEDS) if body.seed is None else body.seed,
        guidance=rules.guidance if body.guidance_scale is None else body.guidance_scale,
        negative=body.negative_prompt or "",
    )


def next_seed(painting: Painting, number: int) -> int:
    """The seed of the picture with that number, from 0: a request's pictures differ, and each is always the same."""
    return (painting.seed + number) % SEEDS


def painter(asking: Asking, body: PaintingRequest, *, videos: bool) -> Model:
    """Raises: ModelNotFound, RequestError."""
    model = asking.find_model(body.model, "image")
    if model.painting.videos != videos:
        makes, there = ("videos", "/v1/videos") if model.painting.videos else ("pictures", "/v1/images/generations")
        raise RequestError(f"The model '{model.name}' makes {makes}: use {there}.", param="model")
    return model


def painting_plan(
    asking: Asking,
    body: PaintingRequest,
    prefix: str,
    model: Model,
    paintings: Sequence[Painting],
    *,
    whole: bool,
) -> GenerationPlan:
    """`prefix`: of its id. `whole`: nobody looks at its steps."""
    prompts: list[list[int]] = [[] for _ in paintings]
    sampling = [_NO_OUTPUT] * len(paintings)
    plan = plan_of(asking, body, prefix, model, prompts, sampling=sampling, whole=whole)
    return replace(plan, paintings=paintings)


def _size(size_name: str | None, rules: PaintRules) -> tuple[int, int]:
    """Raises: RequestError."""
    size = rules.size if size_name in (None, "auto") else str(size_name)
    if rules.sizes is not None and size not in (*rules.sizes, rules.size):
        sizes = ", ".join(dict.fromkeys((rules.size, *rules.sizes)))
        raise RequestError(f"'size': this model paints {sizes}, not '{size}'.", param="size")
    try:
        width, height = parse_size(size)
    except ValueError as exc:
        raise RequestError(f"'size' {exc}, as 1024x768; it is '{size}'.", param="size") from None
    if not width or not height or width % rules.multiple_of or height % rules.multiple_of:
        raise RequestError(f"'size': both sides have to be multiples of {rules.multiple_of}, not {size}.", param="size")
    if width * height > rules.max_pixels:
        raise RequestError(f"'size': {size} are {width * height} pixels, more than {rules.max_pixels}.", param="size")
    return width, height
