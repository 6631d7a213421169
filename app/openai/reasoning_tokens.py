"""Counts an answer's tokens of reasoning, from its text, so that pieces don't matter (decision 0032)."""

from app.dispatch.models.models import Model

SHORT = 8192  # characters; the tokens of more are counted in a thread


def reasoning_tokens(model: Model, text: str) -> int:
    return len(model.tokenizer.encode(text, add_special_tokens=False)) if text else 0
