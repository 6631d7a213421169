"""Pictures: what a body means, and what its answer looks like."""

import asyncio
from base64 import b64encode
from collections.abc import Sequence
from typing import Annotated, Literal, Self

from msgspec.structs import replace
from pydantic import Field

from app.dispatch.asking import Asking
from app.dispatch.generation_base import GenerationBase
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.media.media_reader import Origin, Sample
from app.endpoints import IMAGES
from app.errors import RequestError
from app.messages.job import Painting
from app.openai.painting import (
    Guidance,
    NegativePrompt,
    PaintingRequest,
    Seed,
    Steps,
    begun_painting,
    next_seed,
    painter,
    painting_plan,
)
from app.openai.picture_answers import FileFormat, Picture, Pictures, PictureUsage
from app.pools.schema import Quality
from app.schemas.body import Body
from app.schemas.neutral import NEUTRAL_OF_IMAGES, neutral
from app.schemas.validation import parse_off_loop

MOST = 10  # pictures of one request, as OpenAI has it
_STRENGTH = 0.8  # of an edit, if it says nothing: as most pipelines have it


class PicturesRequest(PaintingRequest):
    """A request for pictures: the fields that generations and edits have in common."""

    n: Annotated[int, Field(ge=1, le=MOST)] | None = None
    response_format: Literal["b64_json", "url"] | None = None  # b64_json if not given
    output_format: Literal["png", "jpeg", "webp"] | None = None
    output_compression: Annotated[int, Field(ge=0, le=100)] | None = None  # percent of quality, of jpeg and webp
    stream: bool | None = None
    partial_images: Annotated[int, Field(ge=0, le=3)] | None = None
    quality: Quality | Literal["auto"] | None = None  # the pool says which of them have how many steps
    style: Literal["vivid", "natural"] | None = None  # of OpenAI's own model: changes nothing

    def check(self) -> None:
        """Raises: RequestError."""
        if self.partial_images and not self.stream:
            raise RequestError("'partial_images' come with 'stream' only.", param="partial_images")
        if self.stream and self.response_format == "url":
            raise RequestError("'response_format': streamed pictures come as b64_json.", param="response_format")
        if self.output_compression is not None and self.output_format not in ("jpeg", "webp"):
            raise RequestError("'output_compression' is for the formats jpeg and webp.", param="output_compression")


class PictureExtension(Body):
    """Fields of `nvext`, by which Dynamo's clients say the same."""

    negative_prompt: NegativePrompt | None = None
    num_inference_steps: Steps | None = None
    guidance_scale: Guidance | None = None
    seed: Seed | None = None


@neutral(NEUTRAL_OF_IMAGES)
class ImageRequest(PicturesRequest):
    """A picture of a text."""

    nvext: PictureExtension | None = None

    def merged(self) -> Self:
        """The request with the extension's values in its own fields. Raises: RequestError if they have others."""
        extra = {} if self.nvext is None else self.nvext.model_dump(exclude_none=True)
        for name, value in extra.items():
            if getattr(self, name) not in (None, value):
                raise RequestError(f"'nvext.{name}' is not what '{name}' is.", param=f"nvext.{name}")
        return self.model_copy(update={**extra, "nvext": None}) if extra else self


@neutral(NEUTRAL_OF_IMAGES)
class EditRequest(PicturesRequest):
    """Another picture of a picture, or of several, which come in the form's field `image`; `mask` says where."""

    strength: Annotated[float, Field(gt=0, le=1)] | None = None  # extension: how far it goes from the picture


async def understand(asking: Asking, raw: bytes) -> tuple[ImageRequest, GenerationPlan]:
    """Raises: XylemError."""
    body = await asking.served((await parse_off_loop(ImageRequest, raw)).merged(), "images")
    return body, pictures_plan(asking, body)


async def understand_edit(
    asking: Asking, raw: bytes, sources: Sequence[Sample], mask: Sample | None
) -> tuple[EditRequest, GenerationPlan]:
    """`sources`: the pictures, at least one. Raises: XylemError."""
    if mask is not None and mask.media.shape != sources[0].media.shape:
        (height, width), (high, wide) = mask.media.shape, sources[0].media.shape
        raise RequestError(f"'mask': it is {width}x{height}, and the picture is {wide}x{high}.", param="mask")
    body = await asking.served(await parse_off_loop(EditRequest, raw), "images")
    plan = pictures_plan(asking, body)
    strength, steps = body.strength or _STRENGTH, plan.paintings[0].steps
    if steps * strength < 1:
        raise RequestError(f"'strength': {strength:g} of {steps} steps is less than one.", param="strength")
    paintings = [replace(painting, strength=strength, masked=mask is not None) for painting in plan.paintings]
    pictures = [*sources, *(() if mask is None else (mask,))]
    samples = {Origin("image", number=number): one for number, one in enumerate(pictures)}
    media = [[one.media for one in pictures] for _ in paintings]
    return body, replace(plan, paintings=paintings, media=media, samples=samples)


def pictures_plan(asking: Asking, body: PicturesRequest) -> GenerationPlan:
    """Raises: RequestError, ModelNotFound."""
    body.check()
    model = painter(asking, body, videos=False)
    by_quality = model.painting.quality_steps.items()
    usual_steps = next((steps for quality, steps in by_quality if quality == body.quality), None)
    first = replace(
        begun_painting(body, model, usual_steps),
        format=body.output_format or "png",
        quality=100 if body.output_compression is None else body.output_compression,
        previews=body.partial_images or 0,
    )
    paintings = [replace(first, seed=next_seed(first, number)) for number in range(body.n or 1)]
    plan = painting_plan(asking, body, IMAGES.prefix, model, paintings, whole=not body.stream)
    return replace(plan, ignored=_ignored(body, usual_steps))


def _ignored(body: PicturesRequest, usual_steps: int | None) -> list[str]:
    """Fields that say something and change nothing. The qualities that mean a model's usual one say nothing."""
    usual = usual_steps is not None or body.quality in (None, "auto", "standard")
    return [*([] if usual else ["quality"]), *([] if body.style is None else ["style"])]


async def painted_files(call: GenerationBase) -> list[bytearray]:
    """The pictures of a call, in order. Raises: the error that ended one."""
    while await call.progress():
        pass
    return [call.pictures[number] for number in range(len(call.plan.paintings))]


class ImageWriter:
    """Writes a whole answer."""

    def __init__(self, call: GenerationBase, _body: PicturesRequest) -> None:
        self._call = call

    async def files(self) -> list[bytearray]:
        """The pictures, in order. Raises: the error that ended one."""
        return await painted_files(self._call)

    async def whole(self) -> Pictures:
        """Raises: the error that ended a picture."""
        files = await self.files()
        return self.answer(b64_json=await asyncio.to_thread(lambda: [b64encode(file).decode() for file in files]))

    def answer(self, *, b64_json: Sequence[str] = (), urls: Sequence[str] = ()) -> Pictures:
        """`b64_json`: the bytes of each one; or `urls`: where it is."""
        paintings, prompt = self._call.plan.paintings, self._call.plan.revised_prompt
        data: list[Picture] = [{"b64_json": file, "seed": 0} for file in b64_json]
        data += [{"url": url, "seed": 0} for url in urls]
        for picture, painting in zip(data, paintings, strict=True):
            picture["seed"] = painting.seed
            if prompt is not None:
                picture["revised_prompt"] = prompt
        answer: Pictures = {
            "created": self._call.created,
            "data": data,
            "background": "opaque",
            "output_format": file_format(paintings[0]),
            "size": size(paintings[0]),
        }
        if any(self._call.before):
            answer["usage"] = usage(self._call)
        return answer


def usage(call: GenerationBase) -> PictureUsage:
    """Painting is not counted in tokens, but OpenAI's client wants the field; a pipeline's texts before it are."""
    prompt, _cached_tokens, answer_tokens = call.before
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"image_tokens": 0, "text_tokens": prompt},
        "output_tokens": answer_tokens,
        "total_tokens": prompt + answer_tokens,
    }


def file_format(painting: Painting) -> FileFormat:
    assert painting.format != "mp4"
    return painting.format


def size(painting: Painting) -> str:
    return f"{painting.width}x{painting.height}"
