"""Shortening a conversation that is too long."""

from collections.abc import Sequence

from app.openai.responses.input_items import CallOutput, CustomCall, FunctionCall, InputItem, InputMessage


def from_item(items: Sequence[InputItem], first: int) -> Sequence[InputItem]:
    """The items from `first` on, and all rules before it. A tool's output is left out with its call."""
    if first == 0:
        return items
    remaining_items = [item for i, item in enumerate(items) if i >= first or _is_rule(item)]
    calls = {item.call_id for item in remaining_items if isinstance(item, FunctionCall | CustomCall)}
    return [item for item in remaining_items if not isinstance(item, CallOutput) or item.call_id in calls]


def _is_rule(item: InputItem) -> bool:
    return isinstance(item, InputMessage) and item.role in ("system", "developer")
