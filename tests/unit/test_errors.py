"""The error tree is drawn, coded and worded in one place."""

import asyncio
import inspect
import json
import re
from typing import Any

import pytest

from app import errors
from app.api.http.error_responses import as_response
from app.api.http.error_shape import error_event
from app.errors import OUTCOMES, RequestError, XylemError, from_wire, outcome_of
from app.openai.error_body import as_body

TREE = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, XylemError)]
OPENAIS, ANTHROPICS = ({"type": "http", "path": path, "headers": []} for path in ("/v1/responses", "/v1/messages"))


def test_every_class_is_drawn_in_the_tree_with_its_status() -> None:
    """The drawing at the top of the module is what people read."""
    doc = inspect.getdoc(errors) or ""
    statuses = dict(re.findall(r"^[│ ]*[├└]── (\w+) +(\d{3})?", doc, re.MULTILINE))
    assert set(statuses) | {"XylemError"} == {c.__name__ for c in TREE}
    for cls in set(TREE) - {XylemError}:
        status = statuses[cls.__name__] or cls.__base__.status  # where none is drawn, that of its parent
        assert int(status) == cls.status, cls


def test_no_two_classes_share_a_code() -> None:
    """The code is all that tells them apart on the wire."""
    assert len({c.code for c in TREE}) == len(TREE)


@pytest.mark.parametrize("cls", TREE)
def test_an_error_crosses_the_wire_as_itself(cls: type[XylemError]) -> None:
    """An error that a worker raised is raised by the API."""
    exc = from_wire(cls.code, "why")
    assert type(exc) is cls
    assert exc.message == str(exc) == "why"


def test_an_unknown_code_becomes_the_root() -> None:
    """A newer worker may know errors that this API doesn't."""
    exc = from_wire("of_the_future", "why")
    assert type(exc) is XylemError
    assert exc.message == "why"


def test_the_outcomes_of_requests_are_a_closed_set() -> None:
    """Outcomes are labels of metrics: an exception's own name never becomes one, whatever is raised."""
    assert {"ok"} | {cls.code for cls in TREE} == OUTCOMES
    assert outcome_of(None) == "ok"
    assert {cls: outcome_of(cls()) for cls in TREE} == {cls: cls.code for cls in TREE}
    exceptions = (asyncio.CancelledError(), TimeoutError(), ValueError("a prompt"), GeneratorExit())
    assert [outcome_of(exc) for exc in exceptions] == ["cancelled", *["internal_error"] * 3]


@pytest.mark.parametrize("cls", TREE)
def test_an_error_without_words_says_its_docstring(cls: type[XylemError]) -> None:
    """No error can be empty."""
    assert cls().message == inspect.getdoc(cls)
    assert cls.__doc__
    assert cls.__doc__.strip().endswith((".", "!"))


@pytest.mark.parametrize("cls", TREE)
def test_an_error_is_shown_in_openais_shape_with_its_status(cls: type[XylemError]) -> None:
    """Four keys, always all of them."""
    body = as_body(cls("why", param="field"))
    assert body == {"error": {"message": "why", "type": cls.type, "param": "field", "code": cls.code}}
    assert as_response(cls(), OPENAIS).status_code == cls.status


def test_retry_after_is_sent_where_it_is_known() -> None:
    """Seconds are whole, as HTTP wants them."""
    assert as_response(errors.Saturated(retry_after_s=7), OPENAIS).headers["retry-after"] == "7"
    for lacking in (errors.NoWorker(), errors.PoolAsleep(), errors.StoreDown(), errors.StorageDown()):
        assert as_response(lacking, OPENAIS).headers["retry-after"] == "1"  # docs/guide/api.md says so
    assert "retry-after" not in as_response(RequestError(), OPENAIS).headers


@pytest.mark.parametrize(("scope", "named"), [(OPENAIS, b""), (ANTHROPICS, b"event: error\n")])
def test_an_error_in_a_stream_is_one_event_in_its_clients_shape(scope: dict[str, Any], named: bytes) -> None:
    """The openai client raises APIError for it, the anthropic client its own."""
    raw = error_event(RequestError("a\nb"), scope)
    assert raw.count(b"\n\n") == 1
    body = json.loads(raw.removeprefix(named).removeprefix(b"data: "))
    assert body == json.loads(bytes(as_response(RequestError("a\nb"), scope).body))
    assert (body["error"]["message"], "type" in body) == ("a\nb", bool(named))
