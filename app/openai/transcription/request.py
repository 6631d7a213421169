"""The fields of a form that comes with a sound."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field

from app.errors import RequestError
from app.openai.schemas import ModelRequest
from app.schemas.form_values import form_value
from app.schemas.validation import validated

Format = Literal["json", "text", "srt", "vtt", "verbose_json"]


class TranslationRequest(ModelRequest):
    prompt: Annotated[str, Field(max_length=4096)] | None = None  # what may have been said before, or names in it
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    response_format: Format | None = None

    @property
    def form(self) -> Format:
        return self.response_format or "json"

    @property
    def tells_times(self) -> bool:
        return self.form in ("srt", "vtt", "verbose_json")


class TranscriptionRequest(TranslationRequest):
    language: Annotated[str, Field(max_length=16)] | None = None  # ISO 639-1
    stream: bool | None = None
    timestamp_granularities: Annotated[list[Literal["segment", "word"]], Field(max_length=2)] | None = None
    chunking_strategy: Literal["auto"] | None = None  # has no effect: long sounds are cut where it is quiet

    def check(self) -> None:
        """Raises: RequestError."""
        if "word" in (self.timestamp_granularities or ()):
            param = "timestamp_granularities"
            raise RequestError(f"'{param}': this server tells the times of segments, not of words.", param=param)
        if self.stream and self.tells_times:
            raise RequestError(f"'stream': not with the response_format {self.form}.", param="stream")


def read_form(
    schema: type[TranslationRequest], fields: Iterable[tuple[str, str]]
) -> "TranslationRequest | TranscriptionRequest":
    """Raises: RequestError that names the field."""
    doc: dict[str, Any] = {}
    for field, text in fields:
        name = field.removesuffix("[]")
        value = form_value(name, text)
        if name == "timestamp_granularities":
            doc.setdefault(name, []).append(value)
        elif name in doc:
            raise RequestError(f"'{name[:64]}' is there twice.", param=name[:64])
        else:
            doc[name] = value
    body = validated(schema, doc)
    body.check()
    return body
