"""Reads answers: the new columns that they become, and what went wrong. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from app.cli.batch_run.column import Column, Kind, fits
from app.cli.batch_run.errors import RunError
from app.endpoints import CHAT, EMBEDDINGS, MESSAGE, RESPONSE, TEXT

_KINDS: Mapping[str, Kind] = {"string": "text", "integer": "integer", "number": "number", "boolean": "boolean"}
_TEXTUAL = (CHAT.path, TEXT.path, RESPONSE.path, MESSAGE.path)
_AGAIN = frozenset({408, 409, 429})  # and all from 500 on: the same request may do better later
_AGAIN_CODES = frozenset({"batch_expired", "internal_error"})  # of lines that were not executed


class Answer(NamedTuple):
    """The outcome of a row's request."""

    row: int
    values: Mapping[str, Any]  # of the new columns
    error: str | None = None
    again: bool = False  # the row may be tried again
    is_cut: bool = False  # by the most tokens that it might have


class AnswerColumns:
    def __init__(self, endpoint: str, schema: Mapping[str, Any] | None, *, prefix: str = "") -> None:
        """`prefix`: of the new columns' names. Raises: RunError for a schema that gives no columns."""
        self._endpoint, self._prefix = endpoint, prefix
        self._properties = None if schema is None else _properties(schema)
        self.columns = [Column(prefix + name, kind) for name, kind in self._kinds()]
        self.columns.append(Column(f"{prefix}error", "text"))

    def check(self, there: Sequence[Column]) -> None:
        """Raises: RunError if the input has a column of the same name."""
        names = {column.name for column in there}
        if both := [column.name for column in self.columns if column.name in names]:
            raise RunError(f"the input has a column '{both[0]}' itself: --prefix gives the new ones another name")

    def read(self, raw: str | bytes) -> Answer | None:
        """The outcome that a line of a batch's output or error file has; None: it doesn't say of which row."""
        line = orjson.loads(raw)
        if line["custom_id"] is None:
            return None
        row, response, error = int(line["custom_id"]), line["response"], line["error"]
        if error is not None or response is None or response["status_code"] != 200:
            return _failure(row, response, error or {})
        body = response["body"]
        try:
            return Answer(row, self._values(body), is_cut=_is_cut(self._endpoint, body))
        except (LookupError, TypeError, ValueError) as exc:
            return Answer(row, {}, f"an answer of another form: {exc}", is_cut=_is_cut(self._endpoint, body))

    def merged(self, row: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
        new = {column.name: answer.values.get(column.name) for column in self.columns}
        return {**row, **new, f"{self._prefix}error": answer.error}

    def _kinds(self) -> list[tuple[str, Kind]]:
        if self._properties is not None:
            return [*self._properties.items()]
        if self._endpoint in _TEXTUAL:
            return [("answer", "text")]
        return [("embedding", "numbers")] if self._endpoint == EMBEDDINGS.path else [("response", "json")]

    def _values(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Raises: LookupError, TypeError, ValueError."""
        if self._properties is not None:
            values = orjson.loads(_text(self._endpoint, body))
            for name, kind in self._properties.items():
                if not fits(kind, values.get(name)):
                    raise ValueError(f"'{name}' is no {kind}")
            return {self._prefix + name: values.get(name) for name in self._properties}
        ((name, _),) = self._kinds()
        if name == "answer":
            return {self._prefix + name: _text(self._endpoint, body)}
        return {self._prefix + name: body["data"][0]["embedding"] if name == "embedding" else body}


def _failure(row: int, response: Mapping[str, Any] | None, error: Mapping[str, Any]) -> Answer:
    status = 0 if response is None else int(response["status_code"])
    words = str(error.get("message") or f"status {status}")
    code = error.get("code")
    again = status >= 500 or status in _AGAIN or (status == 0 and code in _AGAIN_CODES)
    return Answer(row, {}, f"{code}: {words}" if code else words, again=again)


def _properties(schema: Mapping[str, Any]) -> dict[str, Kind]:
    properties = schema.get("properties")
    if schema.get("type") != "object" or not isinstance(properties, dict) or not properties:
        raise RunError("--schema has to be of an object with 'properties': each becomes a column")
    return {name: _KINDS.get(_type(one), "json") for name, one in properties.items()}


def _type(schema: Any) -> str:
    """The one type that it has, beside null; '': several, or another one."""
    types = schema.get("type") if isinstance(schema, dict) else None
    names = [types] if isinstance(types, str) else [name for name in types or () if name != "null"]
    return names[0] if len(names) == 1 else ""


def _text(endpoint: str, body: Mapping[str, Any]) -> str:
    if endpoint == CHAT.path:
        message = body["choices"][0]["message"]
        content = message.get("content")
        return str(content) if content is not None else orjson.dumps(message).decode()  # calls of tools
    if endpoint == TEXT.path:
        return str(body["choices"][0]["text"])
    if endpoint == MESSAGE.path:
        return "".join(part["text"] for part in body["content"] if part["type"] == "text")
    items = (item for item in body["output"] if item["type"] == "message")
    return "".join(part["text"] for item in items for part in item["content"] if part["type"] == "output_text")


def _is_cut(endpoint: str, body: Mapping[str, Any]) -> bool:
    if endpoint in (CHAT.path, TEXT.path):
        return bool(body["choices"][0].get("finish_reason") == "length")
    if endpoint == MESSAGE.path:
        return bool(body.get("stop_reason") == "max_tokens")
    return endpoint == RESPONSE.path and body.get("status") == "incomplete"
