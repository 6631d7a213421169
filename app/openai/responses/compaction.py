"""Compaction: the model writes a summary of a conversation, and clients send it instead of the conversation."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from app.errors import EngineFailed
from app.openai.responses.answer_types import Compacted
from app.openai.responses.input_items import InputItem, InputMessage, Items
from app.openai.responses.items import items_of
from app.openai.responses.opaque import enclose
from app.openai.responses.response_object import ResponseObject
from app.openai.responses.schemas import Identifier, ResponseRequest
from app.openai.schemas import GenerationRequest
from app.schemas.neutral import neutral

_ASK = (
    "Write down, for another assistant who goes on with this conversation and sees nothing of it, all that it has to "
    "know: what is wanted, what was found out and decided, what has been done, and what is left to do. Be brief."
)


@neutral()
class CompactRequest(GenerationRequest):
    input: Annotated[Items, Field(min_length=1)] | str | None = None
    instructions: str | None = None
    previous_response_id: Identifier | None = None

    def as_response(self) -> ResponseRequest:
        """The request for the summary."""
        items = [InputMessage(role="user", content=self.input)] if isinstance(self.input, str) else self.input or []
        names = {*GenerationRequest.model_fields, "instructions", "previous_response_id"} - {"stream"}
        return ResponseRequest.model_construct(
            **{name: getattr(self, name) for name in names},
            input=[*items, InputMessage(role="user", content=_ASK)],
            store=False,
        )


def compacted(progress: ResponseObject, items: Sequence[InputItem]) -> Compacted:
    """`items`: those that the summary replaces. Raises: EngineFailed."""
    text = "".join(item.text for item in progress.output.items if item.kind == "message")
    if not text.strip():
        raise EngineFailed("The model has written no summary of the conversation.")
    response = progress.response()
    assert response["usage"] is not None  # it has ended
    users = [item for item in items if isinstance(item, InputMessage) and item.role == "user"]
    item = {"id": f"cmp_{progress.id.partition('_')[2]}", "type": "compaction", "encrypted_content": enclose(text)}
    return {
        "id": response["id"],
        "object": "response.compaction",
        "created_at": response["created_at"],
        "output": [*items_of(progress.id, users), item],
        "usage": response["usage"],
    }
