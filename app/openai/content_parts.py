"""The parts of a message's content: texts, pictures, videos and sound."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from app.dispatch.media.media_reader import Origin
from app.schemas.body import MOST, Body, Hints, Some
from app.schemas.neutral import Refused

_WHAT = "content parts of type"
Detail = Literal["auto", "low", "high", "original"] | None  # has no effect: models see pictures in one way
FileId = Annotated[str, Field(min_length=1, max_length=64)]


class AnyText(Hints):
    type: str
    text: str


class PlainText(AnyText):
    type: Literal["text"]


class RefusalPart(AnyText):
    """A refusal that OpenAI's models gave instead of an earlier answer: a text for others."""

    model_config = ConfigDict(serialize_by_alias=True)  # so that a kept request parses again
    type: Literal["refusal"]
    text: Annotated[str, Field(alias="refusal")]


class TextPart(AnyText):
    """A text where nothing else is allowed."""

    type: Annotated[Literal["text"], Refused(_WHAT)]


class MediaPart(Hints):
    @property
    def origin(self) -> Origin:
        raise NotImplementedError


class ImagePart(MediaPart):
    class Url(Body):
        url: Annotated[str, Field(min_length=1)]
        detail: Detail = None

    type: Literal["image_url"]
    image_url: Url

    @property
    def origin(self) -> Origin:
        return Origin("image", self.image_url.url)


class VideoPart(MediaPart):
    """A video as vLLM takes it."""

    class Url(Body):
        url: Annotated[str, Field(min_length=1)]

    type: Literal["video_url"]
    video_url: Url

    @property
    def origin(self) -> Origin:
        return Origin("video", self.video_url.url)


class FilePart(MediaPart):
    """A picture or a video among the client's own files."""

    class File(Body):
        file_id: FileId
        filename: Annotated[str, Field(max_length=512)] | None = None

    type: Literal["file"]
    file: File

    @property
    def origin(self) -> Origin:
        return Origin("file", file_id=self.file.file_id)


class AudioPart(MediaPart):
    class Sound(Body):
        data: Annotated[str, Field(min_length=1)]  # base64
        format: Literal["wav", "mp3"]

    type: Literal["input_audio"]
    input_audio: Sound

    @property
    def origin(self) -> Origin:
        return Origin("audio", f"data:audio/{self.input_audio.format};base64,{self.input_audio.data}")


Part = Annotated[PlainText | ImagePart | VideoPart | FilePart | AudioPart, Field(discriminator="type")]
# In this order, errors are reported for the list.
Texts = Annotated[Some[TextPart], Field(max_length=MOST)] | str
Parts = Annotated[Some[Part], Field(max_length=MOST)] | str
Answered = (
    Annotated[Some[Annotated[PlainText | RefusalPart, Field(discriminator="type")]], Field(max_length=MOST)] | str
)


class PictureFile(FilePart):
    """A file where nothing but a picture is allowed."""

    @property
    def origin(self) -> Origin:
        return Origin("image", file_id=self.file.file_id)


def picture(url: str | None, file_id: str | None) -> MediaPart:
    """A picture of a request in another shape than a chat's."""
    if file_id is not None:
        return PictureFile.model_construct(type="file", file=FilePart.File.model_construct(file_id=file_id))
    assert url is not None
    return ImagePart.model_construct(type="image_url", image_url=ImagePart.Url.model_construct(url=url))


def joined(parts: Any) -> str:
    """The text of parts of any shape, without what is no text."""
    return "\n".join(part.text for part in parts if not isinstance(part, MediaPart))
