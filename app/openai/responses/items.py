"""The items of a response or a conversation, as OpenAI lists them."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from app.errors import RequestError
from app.ids import RequestId
from app.openai.content_parts import AudioPart
from app.openai.responses.answer_types import ItemsPage, ListedItem
from app.openai.responses.input_items import (
    CallOutput,
    InputItem,
    InputMessage,
    InputPart,
    InputRefusal,
    InputText,
    ReasoningItem,
)
from app.openai.responses.response_object import PREFIX
from app.openai.responses.schemas import ItemsQuery
from app.schemas.answers import ends

_ID = re.compile("[a-z]+_([0-9a-f]{24})_(?:in)?[0-9]+")


def items_of(name: str, items: Iterable[InputItem]) -> list[ListedItem]:
    """A client's items as objects. Their ids are derived from `name`, such as a response's id."""
    return [_item(f"{_kind(item)}_{name.removeprefix(PREFIX)}_in{number}", item) for number, item in enumerate(items)]


def response_of(item: str) -> RequestId | None:
    """The response to which an item of that id belongs; None: to none."""
    match = _ID.fullmatch(item)
    return RequestId(f"{PREFIX}{match[1]}") if match else None


def page(items: Sequence[ListedItem], query: ItemsQuery) -> ItemsPage:
    """Raises: RequestError when `query.after` is none of the items."""
    rows = [*items] if query.order == "asc" else [*reversed(items)]
    if query.after is not None:
        places = [place for place, item in enumerate(rows) if item["id"] == query.after]
        if not places:
            raise RequestError("'after' is not the id of one of these items.", param="after")
        rows = rows[places[0] + 1 :]
    data = rows[: query.limit]
    first, last = ends(data)
    return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": len(rows) > len(data)}


def _kind(item: InputItem) -> str:
    return {"reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}.get(item.type or "", "msg")


def _item(name: str, item: InputItem) -> ListedItem:
    if isinstance(item, InputMessage):
        return _message(name, item)
    fields: dict[str, Any] = item.model_dump(mode="json", exclude_none=True)
    empty: dict[str, Any] = {"summary": []} if isinstance(item, ReasoningItem) else {}
    if isinstance(item, CallOutput) and not isinstance(item.output, str):
        fields["output"] = [_part(part, {"type": "input_text"}) for part in item.output]
    return {"status": "completed"} | empty | fields | {"id": name}


def _message(name: str, message: InputMessage) -> ListedItem:
    content = message.content
    is_answer = message.role == "assistant"
    kind = {"type": "output_text", "annotations": [], "logprobs": []} if is_answer else {"type": "input_text"}
    return {
        "id": name,
        "type": "message",
        "role": message.role,
        "status": message.status or "completed",
        "content": [kind | {"text": content}] if isinstance(content, str) else [_part(part, kind) for part in content],
    } | ({"phase": message.phase} if message.phase else {})


def _part(part: InputPart, kind: dict[str, Any]) -> dict[str, Any]:
    """`kind`: of a text."""
    if isinstance(part, InputRefusal):
        return {"type": "refusal", "refusal": part.text}
    if isinstance(part, InputText):
        return kind | {"text": part.text}
    if isinstance(part, AudioPart):
        return part.model_dump(mode="json")
    return {
        "type": "input_image",
        "image_url": part.image_url,
        "file_id": part.file_id,
        "detail": part.detail or "auto",
    }
