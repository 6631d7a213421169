"""Videos: what a body means, and what a job looks like."""

import secrets
from collections.abc import Iterable
from typing import Annotated, Literal

from msgspec.structs import replace
from pydantic import Field

from app.dispatch.asking import Asking
from app.dispatch.generation_plan import GenerationPlan
from app.endpoints import VIDEOS
from app.errors import RequestError
from app.messages.events import Done, Event, Failed, Progress
from app.messages.kept import KeptRequest
from app.openai.painting import SEEDS, PaintingRequest, begun_painting, painter, painting_plan
from app.openai.picture_answers import Video
from app.schemas.body import Query
from app.schemas.neutral import NEUTRAL_OF_VIDEOS, neutral
from app.schemas.validation import parse_off_loop

_STEP = 4  # frames: the models' time is compressed by four, and they make a multiple of it and one


@neutral(NEUTRAL_OF_VIDEOS)
class VideoRequest(PaintingRequest):
    seconds: Annotated[str, Field(max_length=16)] | Annotated[float, Field(gt=0)] | None = None
    fps: Annotated[int, Field(ge=1, le=120)] | None = None  # extension

    def seeded(self) -> "VideoRequest":
        """The request with a seed, so that any worker and replica paints the same."""
        return self if self.seed is not None else self.model_copy(update={"seed": secrets.randbelow(SEEDS)})

    def length(self, seconds: float) -> float:
        """The video's length in seconds; `seconds` if the request gives none. Raises: RequestError."""
        try:
            duration = seconds if self.seconds is None else float(self.seconds)
        except ValueError:
            duration = 0.0
        if not 0 < duration < float("inf"):
            raise RequestError(f"'seconds' has to be a number above 0, not '{self.seconds}'.", param="seconds")
        return duration


class VideosQuery(Query):
    after: Annotated[str, Field(max_length=100)] | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"


async def understand(asking: Asking, raw: bytes) -> tuple[VideoRequest, GenerationPlan]:
    """Raises: XylemError."""
    body = (await asking.served(await parse_off_loop(VideoRequest, raw), "videos")).seeded()
    return body, video_plan(asking, body)


def video_plan(asking: Asking, body: VideoRequest) -> GenerationPlan:
    """Raises: RequestError, ModelNotFound."""
    model = painter(asking, body, videos=True)
    rules = model.painting
    seconds, fps = body.length(rules.seconds), body.fps or rules.fps
    if seconds > rules.max_seconds:
        raise RequestError(
            f"'seconds': {model.name} makes up to {rules.max_seconds:g}, not {seconds:g}.", param="seconds"
        )
    frames = _STEP * max(0, round((seconds * fps - 1) / _STEP)) + 1
    painting = replace(begun_painting(body, model), format="mp4", frames=frames, fps=fps)
    return painting_plan(asking, body, VIDEOS.prefix, model, [painting], whole=False)


def as_object(
    kept_request: KeptRequest, body: VideoRequest, plan: GenerationPlan, events: Iterable[Event], keep_s: int
) -> Video:
    """A job, in OpenAI's shape. `events`: its log so far. `keep_s`: how long its file is kept."""
    (painting,) = plan.paintings
    video: Video = {
        "id": kept_request.id,
        "object": "video",
        "model": body.asked,
        "status": "queued",
        "progress": 0,
        "created_at": int(kept_request.created),
        "completed_at": None,
        "expires_at": None,
        "error": None,
        "prompt": body.prompt,
        "remixed_from_video_id": None,
        "seconds": f"{painting.frames / painting.fps:g}",
        "size": f"{painting.width}x{painting.height}",
        "seed": painting.seed,
    }
    for event in events:
        if isinstance(event, Progress):
            video["status"], video["progress"] = "in_progress", min(99, 100 * event.step // event.of)
        elif isinstance(event, Done):
            ended_at = int(event.ended)
            video["status"], video["progress"] = "completed", 100
            video["completed_at"], video["expires_at"] = ended_at, ended_at + keep_s
        elif isinstance(event, Failed):
            video["status"], video["error"] = "failed", {"code": event.code, "message": event.message}
    return video
