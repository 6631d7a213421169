"""Requests about kept conversations."""

from typing import Annotated

from pydantic import Field

from app.openai.responses.input_items import InputItem
from app.openai.responses.schemas import Include
from app.openai.schemas import Metadata
from app.schemas.body import Body, Query, Some

_MOST = 20  # items at a time, as at OpenAI
NewItems = Annotated[Some[InputItem], Field(max_length=_MOST)]


class ConversationRequest(Body):
    items: NewItems | None = None
    metadata: Metadata | None = None


class ConversationUpdate(Body):
    metadata: Metadata


class ItemsRequest(Body):
    items: Annotated[NewItems, Field(min_length=1)]


class IncludeQuery(Query):
    include: Include | None = None
