"""`xylem chat`: talk to a model in the terminal."""

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from app.cli.report import err, out, refuse

Message = dict[str, str]
Options = dict[str, Any]  # what goes into each request besides the messages

_MAX_TOKENS = 512  # of one answer: small models may not find an end


def chat(
    question: Annotated[str | None, typer.Argument(help="Ask this, print the answer, and exit.")] = None,
    url: Annotated[str, typer.Option(help="Where the API is.")] = "http://127.0.0.1:8000",
    model: Annotated[str | None, typer.Option(help="A model of that API; its first one if not given.")] = None,
    temperature: Annotated[float, typer.Option(help="0: always the likeliest token.")] = 0.3,
    key: Annotated[
        str | None, typer.Option(envvar="XYLEM_API_KEY", help="An API key, where they are asked for.")
    ] = None,
) -> None:
    """Chat with a model. Ctrl-C stops an answer, Ctrl-D ends the chat."""
    import httpx

    # Proxies are for what is far away; tokens may take long, a connection may not.
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=url, headers=headers, timeout=httpx.Timeout(None, connect=5), trust_env=False) as client:
        try:
            options = {"model": model or _first_model(client), "temperature": temperature, "max_tokens": _MAX_TOKENS}
            if question is not None:
                _answer(client, options, [{"role": "user", "content": question}])
                return
            _converse(client, options)
        except httpx.TransportError as exc:
            refuse(f"no server at {url} ({exc}); start one with: xylem up", code=1)
        except ApiError as exc:
            refuse(str(exc), code=1)


class ApiError(Exception):
    """The API refused."""


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
    """Print the answer as it comes, and return what came until its end or Ctrl-C."""
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
    """The answer's pieces. Closing it ends the request. Raises: ApiError, httpx.TransportError."""
    body = {**options, "messages": messages, "stream": True}
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.is_error:
            response.read()
            raise ApiError(_reason(response))
        for line in response.iter_lines():
            data = line.removeprefix("data: ")
            if data == line or data == "[DONE]":
                continue
            chunk = json.loads(data)
            if "error" in chunk:
                raise ApiError(chunk["error"]["message"])
            for choice in chunk["choices"]:
                yield choice["delta"].get("content") or ""


def _first_model(client: Any) -> str:
    response = client.get("/v1/models")
    if response.is_error:
        raise ApiError(_reason(response))
    return str(response.json()["data"][0]["id"])


def _reason(response: Any) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"the server at {response.url.host}:{response.url.port} answered {response.status_code}; is it Xylem?"
