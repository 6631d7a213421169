"""What is wrong with a request, in the names of its own fields instead of those that a chat has for the same."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from app.errors import PromptTooLong, RequestError

_NAMES = [
    (re.compile(chats), anthropics)
    for chats, anthropics in (
        (r"tools\.(\d+)\.function\.parameters", r"tools.\1.input_schema"),
        (r"tools\.(\d+)\.function", r"tools.\1"),
        (r"tool_choice\.function", "tool_choice"),
        (r"parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
        (r"response_format(\.json_schema(\.schema)?)?", "output_config.format"),
        (r"reasoning_effort", "output_config.effort"),
        (r"chat_template_kwargs.*", "thinking"),
        (r"stop\b", "stop_sequences"),
    )
]


@contextmanager
def openais_names() -> Iterator[None]:
    """Within it, errors name fields of a chat. Raises: RequestError that names those of a Messages request."""
    try:
        yield
    except RequestError as exc:
        raise _renamed(exc) from exc


def _renamed(exc: RequestError) -> RequestError:
    message, param = exc.message, exc.param
    for chats, anthropics in _NAMES:
        if param and chats.match(param):
            renamed = chats.sub(anthropics, param, count=1)
            message, param = message.replace(f"'{param}'", f"'{renamed}'"), renamed
            break
    if isinstance(exc, PromptTooLong):  # by these words, Anthropic's clients shorten the conversation
        message = f"prompt is too long: {message}"
    return type(exc)(message, param=param)
