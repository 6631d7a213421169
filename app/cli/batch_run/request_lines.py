"""Makes the lines of batches from rows, with templates of Jinja for the texts of a request."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jinja2
import orjson
from jinja2.sandbox import ImmutableSandboxedEnvironment

from app.batch.input_line import ENDPOINTS
from app.cli.batch_run.column import Row
from app.cli.batch_run.errors import RunError
from app.endpoints import CHAT, CLASSIFY, COHERE_EMBEDDINGS, EMBEDDINGS, IMAGES, MESSAGE, RESPONSE, TEXT

Fill = Callable[[Row], Any]

_ALONE = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
_PLACES = {  # the field that the prompt is, where it is no message
    TEXT.path: "prompt",
    RESPONSE.path: "input",
    EMBEDDINGS.path: "input",
    CLASSIFY.path: "input",
    IMAGES.path: "prompt",
}
_MESSAGES = (CHAT.path, MESSAGE.path)
_LIMITS = {RESPONSE.path: "max_output_tokens"}  # others have `max_tokens`
SCHEMA_NAME = "row"


class RequestLines:
    """The body of each row's request: a value in which each text is a template."""

    def __init__(self, endpoint: str, body: Mapping[str, Any], schema: Mapping[str, Any] | None = None) -> None:
        """`schema`: of the answers, in JSON; it has no templates. Raises: RunError."""
        if endpoint not in ENDPOINTS:
            raise RunError(f"--endpoint {endpoint}: a batch can be for {', '.join(ENDPOINTS)}")
        self.endpoint, self.model = endpoint, str(body.get("model", ""))
        self.shape = endpoint, body, schema  # all that its lines depend on, besides the rows
        environment = ImmutableSandboxedEnvironment(
            undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False, finalize=_shown
        )
        self._fill = _filled(environment, dict(body), "")
        self._constant = {} if schema is None else _structured(endpoint, schema)

    def body(self, number: int, row: Row) -> dict[str, Any]:
        """Raises: RunError, naming the row."""
        try:
            return {**self._constant, **self._fill(row)}
        except jinja2.UndefinedError as exc:
            raise RunError(f"row {number}: {exc}; its columns are {', '.join(map(repr, row))}") from exc
        except Exception as exc:  # a template is a program: it may raise anything
            raise RunError(f"row {number}: {exc}") from exc

    def line(self, number: int, row: Row) -> bytes:
        """A line whose `custom_id` is the row's number. Raises: RunError."""
        line = {"custom_id": str(number), "method": "POST", "url": self.endpoint, "body": self.body(number, row)}
        try:
            return orjson.dumps(line, default=str, option=orjson.OPT_APPEND_NEWLINE)
        except TypeError as exc:
            raise RunError(f"row {number}: {exc}") from exc


def body_of(
    endpoint: str,
    model: str,
    prompt: str | None,
    *,
    system: str | None = None,
    max_tokens: int | None = None,
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The body that a prompt and options stand for; `more` has what they have not, and goes first. Raises: RunError."""
    body: dict[str, Any] = {"model": model}
    if prompt is not None:
        body |= _asked(endpoint, prompt)
    if system is not None:
        body |= _instructed(endpoint, body, system)
    if max_tokens is not None:
        body[_LIMITS.get(endpoint, "max_tokens")] = max_tokens
    body |= more or {}
    if len(body) == 1:
        raise RunError("--prompt or --body has to say what is asked")
    if endpoint == MESSAGE.path and "max_tokens" not in body:
        raise RunError(f"--max-tokens: {endpoint} needs it")
    return body


def _asked(endpoint: str, prompt: str) -> dict[str, Any]:
    if endpoint in _MESSAGES:
        return {"messages": [{"role": "user", "content": prompt}]}
    if endpoint == COHERE_EMBEDDINGS.path:
        return {"texts": [prompt], "input_type": "search_document", "embedding_types": ["float"]}
    if endpoint not in _PLACES:
        raise RunError(f"{endpoint} has no prompt: --body says what is asked")
    return {_PLACES[endpoint]: prompt}


def _instructed(endpoint: str, body: Mapping[str, Any], system: str) -> dict[str, Any]:
    if endpoint == CHAT.path:
        return {"messages": [{"role": "system", "content": system}, *body.get("messages", ())]}
    if endpoint in (MESSAGE.path, RESPONSE.path):
        return {"instructions" if endpoint == RESPONSE.path else "system": system}
    raise RunError(f"--system is for {CHAT.path}, {RESPONSE.path} and {MESSAGE.path}")


def _structured(endpoint: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    form = {"type": "json_schema", "name": SCHEMA_NAME, "schema": schema, "strict": True}
    if endpoint == RESPONSE.path:
        return {"text": {"format": form}}
    if endpoint == CHAT.path:
        return {"response_format": {"type": form.pop("type"), "json_schema": form}}
    raise RunError(f"--schema is for {CHAT.path} and {RESPONSE.path}")


def text_of(option: str, value: str) -> str:
    """The value itself, or with `@` the text of a file. Raises: RunError."""
    if not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise RunError(f"{option} {value}: {exc}") from exc


def object_of(option: str, text: str) -> dict[str, Any]:
    """A JSON object. Raises: RunError."""
    try:
        value = orjson.loads(text_of(option, text))
    except ValueError as exc:
        raise RunError(f"{option}: no JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise RunError(f"{option}: no JSON object")
    return value


def _shown(value: Any) -> Any:
    return "" if value is None else value


def _filled(environment: jinja2.Environment, value: Any, where: str) -> Fill:
    """Raises: RunError for a template that is none."""
    if isinstance(value, dict):
        fills = {name: _filled(environment, part, f"{where}{name}.") for name, part in value.items()}
        return lambda row: {name: fill(row) for name, fill in fills.items()}
    if isinstance(value, list):
        items = [_filled(environment, part, where) for part in value]
        return lambda row: [fill(row) for fill in items]
    if not isinstance(value, str) or "{" not in value:
        return lambda _: value
    if (alone := _ALONE.fullmatch(value)) and not where.startswith(("messages.", "prompt.", "input.")):
        return _raw(alone[1])
    try:
        template = environment.from_string(value)
    except jinja2.TemplateError as exc:
        raise RunError(f"{where.rstrip('.')}: {exc}") from exc
    return lambda row: template.render(row, row=row)


def _raw(name: str) -> Fill:
    """A column alone has its own type in the request: a list of documents stays a list."""

    def value_of(row: Row) -> Any:
        if name not in row:
            raise RunError(f"there is no column '{name}'")
        return row[name]

    return value_of
