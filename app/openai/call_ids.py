"""The ids of tool calls: the same on every replica that writes the answer."""

import hashlib
from collections.abc import Sequence

from app.dialects.parts import CallBegun
from app.dispatch.models.models import Model
from app.ids import RequestId
from app.openai.conversation import AssistantMessage, Message


class CallIds:
    """The ids of one answer's calls."""

    def __init__(self, model: Model | None, request: RequestId, earlier: int) -> None:
        """`earlier`: calls in the conversation before."""
        dialect = model.writing.dialect if model else None
        self._kind, self._request, self._earlier = dialect.ids if dialect else "call", request, earlier

    def of(self, call: CallBegun, choice: int = 0, prefix: str = "call_") -> str:
        if self._kind == "numbered":
            return f"functions.{call.name}:{self._earlier + call.index}"
        new_id = call_id(self._request, choice, call.index, prefix)
        return new_id[-9:] if self._kind == "nine" else new_id


def call_id(request: RequestId, choice: int, index: int, prefix: str = "call_") -> str:
    return f"{prefix}{hashlib.sha256(f'{request}.{choice}.{index}'.encode()).hexdigest()[:24]}"


def earlier_calls(messages: Sequence[Message]) -> int:
    return sum(len(message.tool_calls or ()) for message in messages if isinstance(message, AssistantMessage))
