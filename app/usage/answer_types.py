"""Reports of usage in JSON: ours, and OpenAI's."""

from collections.abc import Sequence
from typing import Literal, NotRequired

from typing_extensions import TypedDict

from app.usage.query import Group


class UsageRow(TypedDict, closed=True):
    """Sums of a group: it has the groups that were asked for, and with `key` its name."""

    tenant: NotRequired[str]
    key: NotRequired[str]
    key_name: NotRequired[str]
    model: NotRequired[str]
    task: NotRequired[str]
    outcome: NotRequired[str]
    batch: NotRequired[str]
    minute: NotRequired[str]
    hour: NotRequired[str]
    day: NotRequired[str]
    requests: int  # without those that were refused: by a limit or a budget, for want of room, or as wrong
    refused: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    images: int
    engine_s: float
    cost: float


UsageReport = TypedDict(  # `from` is no name in Python
    "UsageReport",
    {"object": Literal["list"], "from": str, "to": str, "group_by": Sequence[Group], "data": list[UsageRow]},
    closed=True,
)


class OrganizationResult(TypedDict, closed=True):
    object: Literal["organization.usage.completions.result"]
    input_tokens: int
    output_tokens: int
    input_cached_tokens: int
    input_audio_tokens: Literal[0]
    output_audio_tokens: Literal[0]
    num_model_requests: int
    project_id: str | None  # null: not asked for, here and below
    user_id: None
    api_key_id: str | None
    model: str | None
    batch: bool | None
    service_tier: None


class OrganizationBucket(TypedDict, closed=True):
    object: Literal["bucket"]
    start_time: int
    end_time: int
    results: list[OrganizationResult]


class OrganizationPage(TypedDict, closed=True):
    object: Literal["page"]
    data: list[OrganizationBucket]
    has_more: bool
    next_page: str | None
