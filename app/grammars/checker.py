"""Whether grammars of requests can be enforced: compiled once, in a process that may die of them."""

import asyncio
import hashlib
import signal
from collections import OrderedDict
from collections.abc import Callable, Sequence

from msgspec import Struct

from app.bounded.pool import ProcessEnded, ProcessPool
from app.bounded.turns import CLIENT
from app.errors import NoProcess, RequestError
from app.grammars.verdict import Verdict, decode_verdict
from app.messages.job import Grammar
from app.messages.wire import encode
from app.telemetry import logger

log = logger(__name__)

_CPU_S = 5
_MEMORY = 2**30  # bytes
# Less than any thread of an engine has: what is compiled on this can be compiled there.
_STACK = 2**21  # bytes
_PROCESSES = 2
_MOST_KNOWN = 4096  # grammars, of which digest and verdict are kept
_MOST_BYTES = 2**24  # of all grammars in these
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
        self._known: OrderedDict[bytes, Verdict] = OrderedDict()  # by digest
        self._size = 0
        # By client, too: one whose turn it is does not wait for another's.
        self._checking: dict[tuple[str, bytes], asyncio.Task[Verdict]] = {}

    async def check(self, checks: Sequence[GrammarCheck]) -> None:
        """Raises: RequestError that names the field, Saturated, NoProcess."""
        for one in checks:
            if reason := (await self.verdict(one.grammar)).reason:
                await self.check(one.parts())
                raise RequestError(f"'{one.where}': {reason}.", param=one.where)

    async def verdict(self, grammar: Grammar) -> Verdict:
        """Raises: Saturated, NoProcess."""
        message = encode(grammar)
        digest = hashlib.sha256(message).digest()
        verdict = self._known.get(digest)
        if verdict is not None:
            self._known.move_to_end(digest)
            return verdict
        this = CLIENT.get(), digest
        checking = self._checking.get(this)
        if checking is None:
            checking = self._checking[this] = asyncio.create_task(self._checked(this, message))
        return await asyncio.shield(checking)  # others may wait for it, too

    def close(self) -> None:
        """Blocks."""
        self._pool.close()

    async def _checked(self, this: tuple[str, bytes], message: bytes) -> Verdict:
        try:
            verdict = await self._compiled(message)
        finally:
            del self._checking[this]
        digest = this[1]
        if digest in self._known:  # another client's, meanwhile
            self._size -= _size(self._known.pop(digest))
        self._known[digest] = verdict
        self._size += _size(verdict)
        while len(self._known) > _MOST_KNOWN or self._size > _MOST_BYTES:
            self._size -= _size(self._known.popitem(last=False)[1])
        return verdict

    async def _compiled(self, message: bytes) -> Verdict:
        """Raises: Saturated, NoProcess."""
        try:
            answer, _ = await self._pool.run(message, cpu_s=_CPU_S)
        except ProcessEnded as exc:
            if exc.took_too_long:
                return Verdict(f"compiling its grammar takes more than {_CPU_S} s")
            log.warning("grammar_compiler_ended", status=exc.status, size=len(message))
            if exc.status in _NOT_OURS:
                raise NoProcess from exc
            return Verdict("its grammar could not be compiled")
        return decode_verdict(answer)


def _size(verdict: Verdict) -> int:
    return 0 if verdict.instead is None else len(verdict.instead.text)
