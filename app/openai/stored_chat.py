"""A stored chat, as OpenAI lists it: a pure function of its request and its log."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema
from typing_extensions import TypedDict

from app.dispatch.generation_base import GenerationBase
from app.dispatch.generation_plan import GenerationPlan
from app.errors import RequestNotFound
from app.ids import RequestId
from app.messages.events import Delta, Done, Event
from app.messages.kept import KeptRequest, StoredChat
from app.openai.content_parts import RefusalPart, joined
from app.openai.responses.schemas import ItemsQuery
from app.openai.schemas import ChatRequest, Metadata
from app.schemas.body import Body, Query

# A message as the client sent it, with an id.
_TEXT = {"anyOf": [{"type": "string"}, {"type": "null"}]}
StoredMessage = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {
            "type": "object",
            "required": ["id", "role", "content", "name", "content_parts"],
            "properties": {"id": {"type": "string"}, "role": {"type": "string"}, "content": _TEXT, "name": _TEXT},
        }
    ),
]


class StoredMessages(TypedDict, closed=True):
    object: Literal["list"]
    data: list[StoredMessage]
    first_id: str | None
    last_id: str | None
    has_more: bool


class StoredChatsQuery(Query):
    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "asc"
    model: str | None = None
    metadata: Metadata | None = None  # as `metadata[key]=value`

    def fits(self, chat: StoredChat) -> bool:
        same_model = self.model is None or chat.model == self.model
        return same_model and (self.metadata or {}).items() <= chat.metadata.items()


class MessagesQuery(ItemsQuery):
    order: Literal["asc", "desc"] = "asc"


class MetadataChange(Body):
    metadata: Metadata | None


class WrittenAnswer(GenerationBase):
    """A kept answer whose log is complete."""

    def __init__(self, kept_request: KeptRequest, plan: GenerationPlan, events: Iterable[Event]) -> None:
        """Raises: RequestNotFound when the log has been deleted meanwhile."""
        super().__init__(kept_request.id, kept_request.created, plan)
        self._deltas: list[tuple[int, Delta]] = []
        end: Event | None = None
        for end in events:
            if isinstance(end, Delta):
                self._deltas.append((end.index, end))
        if not isinstance(end, Done):
            raise RequestNotFound
        self.cached_tokens, self.prompt_tokens = end.cached_tokens, end.prompt_tokens

    async def deltas(self) -> list[tuple[int, Delta]]:
        deltas, self._deltas = self._deltas, []
        return deltas


def messages_of(request: RequestId, body: ChatRequest) -> list[StoredMessage]:
    """The request's messages. Their ids are derived from the chat's, so that all readers see the same."""
    rows = []
    for number, message in enumerate(body.messages):
        fields = message.model_dump(exclude_none=True)
        parts = None if message.content is None or isinstance(message.content, str) else message.content
        content_parts = [part for part in parts or () if not isinstance(part, RefusalPart)]
        if parts is not None and len(content_parts) < len(parts):  # OpenAI shows them in a field of its own
            fields["refusal"] = joined(part for part in parts if isinstance(part, RefusalPart))
        rows.append(
            fields
            | {
                "id": f"{request}-{number}",
                "content": message.content if parts is None else joined(content_parts) if content_parts else None,
                "name": message.name,
                "content_parts": [part.model_dump() for part in content_parts] or None,
            }
        )
    return rows
