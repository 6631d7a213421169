"""Errors in OpenAI's shape."""

from typing import Any

from app.errors import XylemError


def as_body(exc: XylemError) -> dict[str, Any]:
    return {"error": {"message": exc.message, "type": exc.type, "param": exc.param, "code": exc.code}}
