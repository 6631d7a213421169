"""The dialect of one model, whose tokenizer has special tokens of its own."""

from dataclasses import replace
from functools import lru_cache

from app.dialects.dialect import Dialect, Thought
from app.dialects.names import find_dialect
from app.tokenizing.tokenizer import Tokenizer


@lru_cache
def dialect_of(name: str | None, reasoning: tuple[str, str] | None, tokenizer: Tokenizer) -> Dialect:
    """`name`: of the family; None: unknown. `reasoning`: its markers, if they aren't the family's."""
    dialect = (find_dialect(name) if name else None) or Dialect()
    if reasoning is not None:
        begin, end = reasoning
        dialect = replace(dialect, thoughts=(Thought(begin, (end,)),), channels=False)
    return _hiding(dialect, tokenizer)


def _hiding(dialect: Dialect, tokenizer: Tokenizer) -> Dialect:
    """Adds the special tokens that mark nothing to `hidden`: an engine shows all special tokens or none."""
    markers = {marker for pair in dialect.thoughts for marker in (pair.begin, *pair.ends)}
    markers |= {begin for form in dialect.forms for begin in form.begins if begin} | {
        *dialect.hidden,
        *dialect.wrappers,
    }
    markers |= {dialect.addressed} - {""}
    other_tokens: list[str] = []
    for token in tokenizer.raw.get_added_tokens_decoder().values():
        # The scanner can't look for two markers if one contains the other.
        if token.special and not any(token.content in m or m in token.content for m in (*markers, *other_tokens)):
            other_tokens.append(token.content)
    return replace(dialect, hidden=(*dialect.hidden, *other_tokens))
