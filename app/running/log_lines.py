"""The form of the log's lines: one an event, with neither the messages of exceptions nor what they hold."""

import logging
import sys
import traceback
from collections.abc import Iterator
from logging.handlers import WatchedFileHandler

import structlog

_MOST_SHOWN = 20  # exceptions in one line of the log: causes, and parts of groups

# They write lines for every request; Flower and the metrics show the same.
_PER_REQUEST = ("celery.app.trace", "celery.worker.strategy", "uvicorn.access")
# Whole URLs, whose users and passwords may be in them, and headers; and events.
_TELLING = ("httpx", "httpcore", "sse_starlette")


def setup_logging(level: str, *, json: bool, file: str | None = None) -> None:
    """Route structlog and the standard library's loggers to the file, else to stderr, one line an event."""
    shared_processors: list[structlog.types.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso"),
        structlog.processors.ExceptionRenderer(_frames),
    ]
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer()
        if json
        else structlog.dev.ConsoleRenderer(colors=file is None and sys.stderr.isatty())
    )
    structlog.configure(
        processors=[*shared_processors, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler() if file is None else WatchedFileHandler(file, encoding="utf-8")
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processor=renderer, foreign_pre_chain=shared_processors))
    logging.captureWarnings(capture=True)  # Python's, which are lines of the log then, too
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    if level != "debug":
        for per_request in _PER_REQUEST:
            logging.getLogger(per_request).setLevel(logging.WARNING)
    for telling in _TELLING:
        logging.getLogger(telling).setLevel(logging.WARNING)


def _frames(exc_info: structlog.typing.ExcInfo) -> str:
    """The stack and the kind of an exception, after those of its cause, and before those of a group's parts.

    Not their messages, nor any variable: both may hold a prompt.
    """
    return "".join(_shown(exc_info[1], set()))


def _shown(exc: BaseException, visits: set[int]) -> Iterator[str]:
    """`visits`: ids of those that were shown: a cause may be its own, and there are at most so many."""
    visits.add(id(exc))
    before = exc.__cause__ or (None if exc.__suppress_context__ else exc.__context__)
    if before is not None and _is_new(before, visits):
        yield from _shown(before, visits)
        yield "\nthen\n"
    yield from traceback.format_tb(exc.__traceback__)
    yield type(exc).__qualname__
    for number, part in enumerate(exc.exceptions if isinstance(exc, BaseExceptionGroup) else (), 1):
        if _is_new(part, visits):
            yield f"\nof which {number}\n"
            yield from _shown(part, visits)


def _is_new(exc: BaseException, visits: set[int]) -> bool:
    return id(exc) not in visits and len(visits) < _MOST_SHOWN
