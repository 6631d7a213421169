"""Finds how a model writes reasoning and tool calls, by its pool's settings or its chat template."""

from typing import Literal, NamedTuple

from app.dialects.dialect import Dialect
from app.dialects.names import guess_dialect, own_name
from app.dialects.of_model import dialect_of
from app.dialects.output_parser import OutputParser
from app.errors import SettingsError
from app.pools.schema import Pool
from app.telemetry import logger
from app.tokenizing.tokenizer import Tokenizer

log = logger(__name__)


class Writing(NamedTuple):
    dialect: Dialect | None = None  # of reasoning and tool calls
    reasons: bool = False  # answers are parsed even if the request offers no tools
    begun: bool = False  # answers begin inside reasoning, whatever their prompts end with
    special: bool = False  # the markers of reasoning are special tokens
    reasoning_field: Literal["reasoning_content", "reasoning"] = "reasoning_content"  # of a chat's messages
    markers: tuple[str, str] | None = None  # of reasoning, where the pool names them


def dialect_name(pool: Pool, tokenizer: Tokenizer) -> str | None:
    """Our name of the dialect of the pool's answers; None: they have none."""
    name = pool.dialect or guess_dialect(tokenizer.template or "")
    return own_name(name) if name else None


def writing_of(pool: Pool, tokenizer: Tokenizer) -> Writing:
    """Raises: SettingsError for overlapping markers."""
    return _writing(pool, tokenizer)._replace(reasoning_field=pool.reasoning_field)


def _writing(pool: Pool, tokenizer: Tokenizer) -> Writing:
    template = tokenizer.template or ""
    name = dialect_name(pool, tokenizer)
    if pool.reasoning is not None:
        markers = pool.reasoning.begin, pool.reasoning.end
        dialect = dialect_of(name, markers, tokenizer)
        _check(dialect, pool)
        return Writing(dialect, True, pool.reasoning.begun, _special(dialect, tokenizer), markers=markers)
    if name is None:
        return Writing()
    dialect = dialect_of(name, None, tokenizer)
    if pool.dialect is None:
        log.info("dialect_guessed", model=pool.model, dialect=name)
    has_markers = any(marker in template for section in dialect.thoughts for marker in (section.begin, *section.ends))
    reasons = dialect.channels or bool(dialect.thoughts and (has_markers or pool.dialect))
    return Writing(dialect, reasons, special=_special(dialect, tokenizer))


def _check(dialect: Dialect, pool: Pool) -> None:
    try:
        for is_begun in (False, True):
            OutputParser(dialect, {"any": {}}, begun=is_begun).feed("any")
    except ValueError as exc:
        raise SettingsError(f"reasoning={pool.reasoning!r}: these markers and those of calls overlap: {exc}") from exc


def _special(dialect: Dialect, tokenizer: Tokenizer) -> bool:
    markers = {marker for section in dialect.thoughts for marker in (section.begin, *section.ends)}
    tokens = tokenizer.raw.get_added_tokens_decoder().values()
    return dialect.channels or any(token.special and token.content in markers for token in tokens)
