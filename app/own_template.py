"""A chat template that a request brings: compiled and rendered in a process, with bounds (`app/bounded/`)."""

import atexit
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct

from app.bounded.pool import ProcessEnded, ProcessPool
from app.errors import RequestError
from app.loop_thread import LoopThread

MOST = 2**24  # characters of a prompt
_CPU_S = 2
_MEMORY = 2**29  # bytes
_PROCESSES = 2


class TemplateJob(Struct, frozen=True, array_like=True):
    source: str
    values: str | None = None  # JSON of its variables' values; None: it is only looked at


class Rendered(Struct, frozen=True, array_like=True):
    text: str = ""
    variables: list[str] = []  # names that it uses, if it was only looked at
    error: str | None = None
    is_type_error: bool = False


class OwnTemplate:
    def __init__(self, source: str) -> None:
        """Blocks. Raises: ValueError that says why it does not compile, RequestError, Saturated, NoProcess."""
        self._source = source
        found = _asked(TemplateJob(source))
        if found.error is not None:
            raise ValueError(found.error)
        self.variables = frozenset(found.variables)

    def render(self, values: Mapping[str, Any]) -> str:
        """Blocks. Raises: TypeError, ValueError, which are the template's own; RequestError, Saturated, NoProcess."""
        found = _asked(TemplateJob(self._source, json.dumps(values)))
        if found.error is not None:
            raise TypeError(found.error) if found.is_type_error else ValueError(found.error)
        return found.text


def _asked(job: TemplateJob) -> Rendered:
    thread, pool = _started()
    try:
        answer, _ = thread.call(pool.run(msgspec.msgpack.encode(job), cpu_s=_CPU_S))
    except ProcessEnded as exc:
        why = f"takes more than {_CPU_S} s" if exc.took_too_long else "has ended the process in which it ran"
        raise RequestError(f"'chat_template': it {why}.", param="chat_template") from exc
    return msgspec.msgpack.decode(answer, type=Rendered)


@cache
def _started() -> tuple[LoopThread, ProcessPool]:
    pool = ProcessPool("app.own_template_process", memory=_MEMORY, processes=_PROCESSES)
    atexit.register(pool.close)
    return LoopThread("own-templates"), pool
