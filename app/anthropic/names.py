"""Errors of a chat with its field names replaced by those of Anthropic's API."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from app.errors import PromptTooLong, RequestError

_NAMES = [
    (re.compile(chats), anthropics)
    for chats, anthropics in (
        (r"continue_final_message", "messages"),
        (r"tools\.(\d+)\.function\.parameters", r"tools.\1.input_schema"),
        (r"tools\.(\d+)\.function", r"tools.\1"),
        (r"tool_choice\.function", "tool_choice"),
        (r"parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
        (r"response_format(\.json_schema(\.schema)?)?", "output_config.format"),
        (r"chat_template_kwargs.*", "thinking"),
        (r"stop\b", "stop_sequences"),
    )
]


@contextmanager
def openais_names() -> Iterator[None]:
    """Errors raised within it name a chat's fields. Raises: RequestError that names those of a Messages request."""
    try:
        yield
    except RequestError as exc:
        raise _renamed(exc) from exc


def _renamed(exc: RequestError) -> RequestError:
    message, param = exc.message, exc.param
    for chats, anthropics in _NAMES:
        if param and chats.match(param):
            new_param = chats.sub(anthropics, param, count=1)
            message, param = message.replace(f"'{param}'", f"'{new_param}'"), new_param
            break
    if isinstance(exc, PromptTooLong):  # by these words, Anthropic's clients shorten the conversation
        message = f"prompt is too long: {message}"
    return type(exc)(message, param=param)
