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
from app.running.loop_thread import LoopThread

MOST = 2**24  # characters of a prompt
_CPU_S = 2
_MEMORY = 2**29  # bytes
_PROCESSES = 2
_SLOW = f"takes more than {_CPU_S} s"


class TemplateJob(Struct, frozen=True, array_like=True):
    source: str
    values: str | None = None  # JSON of its variables' values; None: it is only looked at


class Rendered(Struct, frozen=True, array_like=True):
    text: str = ""
    variables: list[str] = []  # names that it uses, if it was only looked at
    error: str | None = None
    is_type_error: bool = False
    cpu_s: float = 0.0  # that it took


class OwnTemplate:
    """The template of one request. All that is tried with it shares `_CPU_S` seconds of CPU time."""

    def __init__(self, source: str) -> None:
        """Blocks. Raises: ValueError that says why it does not compile, RequestError, Saturated, NoProcess."""
        self._source, self._cpu_s = source, 0.0
        self._over = ""  # why it is not asked again
        result = self._asked(TemplateJob(source))
        if result.error is not None:
            raise ValueError(result.error)
        self.variables = frozenset(result.variables)

    def render(self, values: Mapping[str, Any]) -> str:
        """Blocks. Raises: TypeError, ValueError, which are the template's own; RequestError, Saturated, NoProcess."""
        result = self._asked(TemplateJob(self._source, json.dumps(values)))
        if result.error is not None:
            raise TypeError(result.error) if result.is_type_error else ValueError(result.error)
        return result.text

    def _asked(self, job: TemplateJob) -> Rendered:
        result = Rendered()
        if not self._over:
            thread, pool = _started()
            try:
                answer, _ = thread.call(pool.run(msgspec.msgpack.encode(job), cpu_s=_CPU_S))
                result = msgspec.msgpack.decode(answer, type=Rendered)
                self._cpu_s += result.cpu_s
                if self._cpu_s > _CPU_S:
                    self._over = _SLOW
            except ProcessEnded as exc:
                self._over = _SLOW if exc.took_too_long else "has ended the process in which it ran"
        if self._over:
            raise RequestError(f"'chat_template': it {self._over}.", param="chat_template")
        return result


@cache
def _started() -> tuple[LoopThread, ProcessPool]:
    pool = ProcessPool("app.tokenizing.own_template_process", memory=_MEMORY, processes=_PROCESSES)
    atexit.register(pool.close)
    return LoopThread("own-templates"), pool
