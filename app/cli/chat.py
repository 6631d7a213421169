"""`xylem chat`: talk to a model in the terminal."""

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from app.cli.client import HERE, ApiError, Key, Url, connected, first_model, reason
from app.cli.event_lines import event_lines
from app.cli.report import err, out

Message = dict[str, str]
Options = dict[str, Any]  # what goes into each request besides the messages

_MAX_TOKENS = 512  # of one answer: small models may not stop by themselves


def chat(
    question: Annotated[str | None, typer.Argument(help="Ask this, print the answer, and exit.")] = None,
    url: Url = HERE,
    model: Annotated[str | None, typer.Option(help="A model of that API; its first one if not given.")] = None,
    temperature: Annotated[float, typer.Option(help="0: always the likeliest token.")] = 0.0,
    key: Key = None,
) -> None:
    """Chat with a model. Ctrl-C stops an answer, Ctrl-D ends the chat."""
    with connected(url, key) as client:
        options = {"model": model or first_model(client), "temperature": temperature, "max_tokens": _MAX_TOKENS}
        if question is not None:
            _answer(client, options, [{"role": "user", "content": question}])
            return
        _converse(client, options)


def _converse(client: Any, options: Options) -> None:
    err.print(f"[dim]{options['model']}; Ctrl-C stops an answer, Ctrl-D ends the chat[/]")
    messages: list[Message] = []
    while True:
        try:
            question = err.input("[bold cyan]> [/]").strip()
        except (EOFError, KeyboardInterrupt):
            err.print()
            return
        if not question:
            continue
        messages.append({"role": "user", "content": question})
        try:
            messages.append({"role": "assistant", "content": _answer(client, options, messages)})
        except ApiError as exc:
            err.print(str(exc), style="red", markup=False)
            messages.pop()


def _answer(client: Any, options: Options, messages: list[Message]) -> str:
    """Print the answer as it comes, and return its text up to the end or Ctrl-C."""
    text = ""
    try:
        for piece in stream(client, options, messages):
            out.print(piece, end="", markup=False, soft_wrap=True)
            text += piece
    except KeyboardInterrupt:
        err.print("\n[dim]stopped[/]", end="")
    out.print()
    return text


def stream(client: Any, options: Options, messages: list[Message]) -> Iterator[str]:
    """The answer's pieces. Closing the iterator ends the request. Raises: ApiError, httpx.TransportError."""
    body = {**options, "messages": messages, "stream": True}
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.is_error:
            response.read()
            raise ApiError(reason(response))
        for line in event_lines(response):
            data = line.removeprefix("data: ")
            if data == line or data == "[DONE]":
                continue
            chunk = json.loads(data)
            if "error" in chunk:
                raise ApiError(chunk["error"]["message"])
            for choice in chunk["choices"]:
                yield choice["delta"].get("content") or ""
                if choice.get("finish_reason") == "length":
                    err.print(f"\n[dim]cut off after {options['max_tokens']} tokens[/]", end="")
