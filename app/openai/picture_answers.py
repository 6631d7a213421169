"""Answers with pictures, their events, and videos."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict

Kind = Literal["image_generation", "image_edit"]
Event = Literal[
    "image_generation.partial_image",
    "image_generation.completed",
    "image_edit.partial_image",
    "image_edit.completed",
]
FileFormat = Literal["png", "jpeg", "webp"]


class PictureTokens(TypedDict, closed=True):
    image_tokens: int
    text_tokens: int


class PictureUsage(TypedDict, closed=True):
    """Tokens of a pipeline's texts: painting is not counted in tokens."""

    input_tokens: int
    input_tokens_details: PictureTokens
    output_tokens: int
    total_tokens: int


class Picture(TypedDict, closed=True):
    b64_json: NotRequired[str]  # its file, in base64
    url: NotRequired[str]  # where it is, for XYLEM_MEDIA_KEEP_S
    seed: int
    revised_prompt: NotRequired[str]  # of a pipeline: what its painter was asked for


class PictureEvent(TypedDict, closed=True):
    type: Event
    b64_json: str
    created_at: int
    background: Literal["opaque"]
    quality: Literal["auto"]
    output_format: FileFormat
    size: str
    seed: int
    partial_image_index: NotRequired[int]
    revised_prompt: NotRequired[str]  # of a pipeline: what its painter was asked for
    usage: NotRequired[PictureUsage]


class Pictures(TypedDict, closed=True):
    created: int
    data: list[Picture]
    background: Literal["opaque"]
    output_format: FileFormat
    size: str
    usage: NotRequired[PictureUsage]  # of a pipeline


class VideoFailure(TypedDict, closed=True):
    code: str
    message: str


class Video(TypedDict, closed=True):
    id: str
    object: Literal["video"]
    model: str
    status: Literal["queued", "in_progress", "completed", "failed"]
    progress: int  # percent
    created_at: int
    completed_at: int | None
    expires_at: int | None  # when its content will be deleted
    error: VideoFailure | None
    prompt: str
    remixed_from_video_id: None
    seconds: str
    size: str
    seed: int


class VideoList(TypedDict, closed=True):
    object: Literal["list"]
    data: list[Video]
    first_id: str | None
    last_id: str | None
    has_more: bool


class VideoDeleted(TypedDict, closed=True):
    id: str
    object: Literal["video.deleted"]
    deleted: Literal[True]
