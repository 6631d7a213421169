"""Adding a response's items to its conversation, before its end is shown to anybody."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from app.api.resumable.conversations import ConversationStore
from app.dispatch.models.models import Model
from app.errors import StoreDown
from app.ids import ConversationId
from app.messages.events import decode_events
from app.messages.kept import KeptRequest
from app.openai.responses.history import History, resolved
from app.openai.responses.items import items_of
from app.openai.responses.response_object import begin_object
from app.openai.responses.schemas import ResponseRequest
from app.schemas.validation import parse

_RETRY_S = 0.2


class ConversationEnd:
    """Called by the answer's owner. If that then dies, the next owner calls it again, without effect."""

    def __init__(self, models: Mapping[str, Model], conversations: ConversationStore) -> None:
        self._models, self._conversations = models, conversations

    async def __call__(self, kept_request: KeptRequest, epoch: int, batches: Sequence[bytes]) -> None:
        """`batches`: its whole log. Raises: Lost."""
        conversation = ConversationId(kept_request.response.conversation)
        if not conversation:
            return None
        items = await asyncio.to_thread(self._items, kept_request, batches)
        while True:
            try:
                return await self._conversations.add_response(
                    conversation, kept_request.key, items, kept_request.id, epoch
                )
            except StoreDown:
                await asyncio.sleep(_RETRY_S)

    def _items(self, kept_request: KeptRequest, batches: Sequence[bytes]) -> list[dict[str, Any]]:
        body = parse(ResponseRequest, kept_request.body)
        history = parse(History, kept_request.response.history)
        progress = begin_object(self._models, kept_request.id, kept_request.created, body, kept_request.response)
        for event in (event for batch in batches for event in decode_events(batch)):
            progress.add(event)
        progress.forget()  # conversations have no logprobs
        own = items_of(kept_request.id, resolved(body.items, history.referenced))
        return [*own, *({**item.shown()} for item in progress.output.items)]
