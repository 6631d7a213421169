"""Requests as their timelines show them: those that run, and those that have ended."""

from typing import Annotated, Any, NotRequired

from typing_extensions import TypedDict

from app.dispatch.inflight import State
from app.ids import PoolId, RequestId, WorkerId
from app.messages.job import KvTransfer
from app.schemas.answers import as_struct


class WorkerPart(TypedDict, closed=True):
    """One worker's part of a prompt; times in seconds since the request arrived."""

    worker: WorkerId
    taken_s: float
    first_token_s: float | None
    ended_s: float
    cost_s: float
    pulled: NotRequired[Annotated[dict[str, Any], as_struct(KvTransfer)]]
    handoff_refused: NotRequired[str]


class _Running(TypedDict):
    x_request_id: str
    state: State
    attempts: int
    workers: list[WorkerId]
    prompt_tokens: int
    answer_tokens: int


class RunningPrompt(_Running, closed=True):
    """A prompt whose request has not ended."""


class EndedPrompt(TypedDict, closed=True):
    """A prompt that has ended; times in seconds since the request arrived."""

    x_request_id: str
    model: str
    outcome: str
    arrived: float  # seconds since the epoch
    prompt_tokens: int
    attempts: int
    placed_s: float | None  # null: never
    workers: list[WorkerPart]
    ended_s: float
    stages: dict[str, float]  # seconds of each
    route: NotRequired[dict[str, Any]]  # with `x-xylem-explain`: as in the header x-xylem-route


class RequestTimeline(TypedDict, closed=True):
    id: RequestId
    prompts: list[RunningPrompt] | list[EndedPrompt]


class RecentRunning(_Running, closed=True):
    id: RequestId
    pool: PoolId
    model: NotRequired[str]


class _InShort(TypedDict):
    model: str
    outcome: str
    arrived: float
    prompts: int
    prompt_tokens: int
    attempts: int
    workers: list[WorkerId]
    first_token_s: float | None
    ended_s: float


class InShort(_InShort, closed=True):
    """A request that has ended; times as `EndedPrompt` has them, of its first prompt."""


class RecentEnded(_InShort, closed=True):
    id: RequestId
