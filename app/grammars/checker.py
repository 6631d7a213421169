"""Whether grammars of requests can be enforced: compiled once, in a process that may die of them."""

import asyncio
import hashlib
import signal
from collections import OrderedDict
from collections.abc import Callable, Sequence

from msgspec import Struct

from app.bounded.pool import ProcessEnded, ProcessPool
from app.errors import NoProcess, RequestError
from app.messages import Grammar, encode
from app.telemetry import logger

log = logger(__name__)

_CPU_S = 5
_MEMORY = 2**30  # bytes
# Less than any thread of an engine has: what is compiled on this can be compiled there.
_STACK = 2**21  # bytes
_PROCESSES = 2
_MOST_KNOWN = 4096  # grammars, of which the digest is kept, and why they were refused
_NOT_OURS = (-signal.SIGKILL, -signal.SIGTERM)  # by the kernel without memory, or by an operator
_LLGUIDANCE = "app.grammars.process"


class GrammarCheck(Struct, frozen=True):
    """A grammar to be checked before its request is placed."""

    grammar: Grammar
    where: str  # the request's field that asks for it
    parts: Callable[[], "Sequence[GrammarCheck]"] = tuple  # of a refused one: those that may be to blame


class GrammarChecker:
    """Remembers what it has checked. On one event loop. Starts no process before the first grammar."""

    def __init__(self, module: str = _LLGUIDANCE) -> None:
        """`module`: of the process that compiles."""
        self._pool = ProcessPool(module, memory=_MEMORY, stack=_STACK, processes=_PROCESSES)
        self._known: OrderedDict[bytes, str] = OrderedDict()  # by digest: why it was refused, or ""
        self._checking: dict[bytes, asyncio.Task[str]] = {}

    async def check(self, checks: Sequence[GrammarCheck]) -> None:
        """Raises: RequestError that names the field, Saturated, NoProcess."""
        for one in checks:
            if reason := await self.reason(one.grammar):
                await self.check(one.parts())
                raise RequestError(f"'{one.where}': {reason}.", param=one.where)

    async def reason(self, grammar: Grammar) -> str:
        """Why it can't be enforced; "" if it can. Raises: Saturated, NoProcess."""
        message = encode(grammar)
        digest = hashlib.sha256(message).digest()
        known = self._known.get(digest)
        if known is not None:
            self._known.move_to_end(digest)
            return known
        checking = self._checking.get(digest)
        if checking is None:
            checking = self._checking[digest] = asyncio.create_task(self._checked(digest, message))
        return await asyncio.shield(checking)  # others may wait for it, too

    def close(self) -> None:
        """Blocks."""
        self._pool.close()

    async def _checked(self, digest: bytes, message: bytes) -> str:
        try:
            reason = await self._compiled(message)
        finally:
            del self._checking[digest]
        self._known[digest] = reason
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        return reason

    async def _compiled(self, message: bytes) -> str:
        """Raises: Saturated, NoProcess."""
        try:
            answer, _ = await self._pool.run(message, cpu_s=_CPU_S)
        except ProcessEnded as exc:
            if exc.took_too_long:
                return f"compiling its grammar takes more than {_CPU_S} s"
            log.warning("grammar_compiler_ended", status=exc.status, size=len(message))
            if exc.status in _NOT_OURS:
                raise NoProcess from exc
            return "its grammar could not be compiled"
        return answer.decode()
