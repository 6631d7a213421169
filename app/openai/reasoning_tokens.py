"""How many tokens a model thought: of the text, the same however the answer came in pieces (decision 0032)."""

from app.dispatch.models import Model

SHORT = 8192  # characters, whose tokens are counted at once


def reasoning_tokens(model: Model, text: str) -> int:
    return len(model.tokenizer.encode(text, add_special_tokens=False)) if text else 0
