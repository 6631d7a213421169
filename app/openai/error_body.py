"""Errors in OpenAI's shape."""

from app.errors import XylemError
from app.openai.answer_types import Refusal


def as_body(exc: XylemError) -> Refusal:
    return {"error": {"message": exc.message, "type": exc.type, "param": exc.param, "code": exc.code}}
