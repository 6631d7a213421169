"""`xylem chat`: talk to a model in the terminal."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from app.cli.client import HERE, ApiError, Key, Url, connected, first_model, reason
from app.cli.event_lines import event_lines
from app.cli.report import err, out

Message = dict[str, str]
Options = dict[str, Any]  # what goes into each request besides the messages


def chat(
    question: Annotated[str | None, typer.Argument(help="Ask this, print the answer, and exit.")] = None,
    url: Url = HERE,
    model: Annotated[str | None, typer.Option(help="A model of that API; its first one if not given.")] = None,
    temperature: Annotated[float, typer.Option(help="0: always the likeliest token.")] = 0.0,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Of one answer; the model's own limit if not given.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="What the model is told before the conversation.")] = None,
    key: Key = None,
) -> None:
    """Chat with a model. Ctrl-C stops an answer, Ctrl-D ends the chat, /help says more."""
    from app.cli.conversation import Conversation

    with connected(url, key) as client:
        options: Options = {"model": model or first_model(client), "temperature": temperature}
        if max_tokens is not None:
            options["max_tokens"] = max_tokens
        conversation = Conversation(system)
        if question is not None:
            answer(client, options, conversation.with_question(question))
            return
        _converse(client, options, conversation)


def _converse(client: Any, options: Options, conversation: Any) -> None:
    from app.cli.conversation import line_reader

    err.print(f"[dim]{options['model']}; Ctrl-C stops an answer, Ctrl-D ends the chat, /help says more[/]")
    read = line_reader()
    while not conversation.over:
        try:
            line = read().strip()
        except (EOFError, KeyboardInterrupt):
            err.print()
            return
        if not line:
            continue
        if (words := conversation.own_command(line)) is not None:
            err.print(words, style="dim", markup=False)
            continue
        try:
            conversation.keep(line, answer(client, options, conversation.with_question(line)))
        except ApiError as exc:
            err.print(str(exc), style="red", markup=False)


def answer(client: Any, options: Options, messages: list[Message]) -> str:
    """Prints the answer as it comes, and then its speed. Returns its text up to the end or Ctrl-C."""
    text, speed = "", Speed(time.monotonic())
    try:
        for piece in stream(client, options, messages, speed):
            out.print(piece, end="", markup=False, soft_wrap=True)
            text += piece
    except KeyboardInterrupt:
        err.print("\n[dim]stopped[/]", end="")
    out.print()
    if words := speed.words(time.monotonic()):
        err.print(words, style="dim", markup=False)
    return text


@dataclass
class Speed:
    """The times of one answer, as this client sees them. Times are monotonic."""

    began: float
    first: float | None = None  # when the first token came
    tokens: int = 0  # as the API counts them; 0: it has not said

    def words(self, now: float) -> str:
        if self.first is None:
            return ""
        words = f"first token after {self.first - self.began:.2f} s"
        if self.tokens > 1 and now > self.first:
            words += f", {self.tokens} tokens, {(self.tokens - 1) / (now - self.first):.1f} tokens/s"
        return words


def stream(client: Any, options: Options, messages: list[Message], speed: Speed) -> Iterator[str]:
    """The answer's pieces. Closing the iterator ends the request. Raises: ApiError, httpx.TransportError."""
    body = {**options, "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
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
            speed.tokens = (chunk.get("usage") or {}).get("completion_tokens", speed.tokens)
            for choice in chunk["choices"]:
                delta = choice["delta"]
                if speed.first is None and any(
                    delta.get(name) for name in ("content", "reasoning_content", "reasoning")
                ):
                    speed.first = time.monotonic()
                yield delta.get("content") or ""
                if choice.get("finish_reason") == "length":
                    err.print("\n[dim]cut off: the answer may have no more tokens (--max-tokens)[/]", end="")
