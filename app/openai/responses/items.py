"""The input of a response, as OpenAI lists it."""

from collections.abc import Sequence
from typing import Any

from app.errors import RequestError
from app.ids import RequestId
from app.openai.responses.response_object import PREFIX
from app.openai.responses.schemas import InputMessage, ItemsQuery, ResponseRequest


def items_of(request: RequestId, body: ResponseRequest) -> list[dict[str, Any]]:
    """In the order of the conversation. Their ids follow from the response's: all readers see the same."""
    given = [InputMessage(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    name = request.removeprefix(PREFIX)
    return [_item(f"msg_{name}_{number}", message) for number, message in enumerate(given)]


def page(items: Sequence[dict[str, Any]], query: ItemsQuery, what: str = "response's input items") -> dict[str, Any]:
    """Raises: RequestError when there is no item that the page would be behind."""
    ordered = [*items] if query.order == "asc" else [*reversed(items)]
    if query.after is not None:
        places = [place for place, item in enumerate(ordered) if item["id"] == query.after]
        if not places:
            raise RequestError(f"'after' is the id of none of this {what}.", param="after")
        ordered = ordered[places[0] + 1 :]
    data = ordered[: query.limit]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": len(ordered) > len(data)}


def _item(name: str, message: InputMessage) -> dict[str, Any]:
    parts = [message.content] if isinstance(message.content, str) else [part.text for part in message.content]
    answered = message.role == "assistant"
    kind = {"type": "output_text", "annotations": [], "logprobs": []} if answered else {"type": "input_text"}
    return {
        "id": name,
        "type": "message",
        "role": message.role,
        "status": message.status or "completed",
        "content": [kind | {"text": text} for text in parts],
    } | ({"phase": message.phase} if message.phase else {})
