"""A grammar of which its compiler dies is refused, and nothing else happens."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.bounded.turns import CLIENT
from app.engines.base import EngineInfo
from app.errors import NoProcess, RequestError
from app.grammars import checker as module
from app.grammars.checker import GrammarCheck, GrammarChecker
from app.ids import ApiId, PoolId, RequestId, WorkerId
from app.keys import Keys
from app.messages.job import Grammar, Job, Sampling, Stage
from app.messages.lease import Speeds
from app.runner.engine_requests import EngineRequests
from tests.hostile_grammars import rules

USUAL = Grammar("json", '{"type": "integer"}')


@pytest.fixture
async def unbounded() -> AsyncIterator[GrammarChecker]:
    """A checker with a compiler that our bounds don't protect."""
    checker = GrammarChecker("tests.compilers.unbounded")
    yield checker
    await asyncio.to_thread(checker.close)


async def reason(checker: GrammarChecker, grammar: Grammar) -> str:
    return (await checker.verdict(grammar)).reason


def pids(checker: GrammarChecker) -> set[int]:
    return {process._process.pid for process in checker._pool._all}


async def test_a_crash_is_the_refusal_of_its_grammar_only(unbounded: GrammarChecker) -> None:
    """The grammars beside it are served, by a new process; and the crash happens once."""
    fatal = Grammar("grammar", rules(4000))
    with pytest.raises(RequestError) as refusal:
        await unbounded.check([GrammarCheck(USUAL, "a"), GrammarCheck(fatal, "guided_grammar")])
    assert refusal.value.param == "guided_grammar"
    assert refusal.value.message == "'guided_grammar': its grammar could not be compiled."
    reasons = await asyncio.gather(*(reason(unbounded, Grammar("grammar", f'start: "{i}"')) for i in range(8)))
    assert reasons == [""] * 8
    alive = pids(unbounded)
    assert await reason(unbounded, fatal) == "its grammar could not be compiled"
    assert pids(unbounded) == alive


async def test_time_and_memory_are_bounded(unbounded: GrammarChecker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CPU_S", 1)
    assert await reason(unbounded, Grammar("grammar", "hangs")) == "compiling its grammar takes more than 1 s"
    assert await reason(unbounded, Grammar("grammar", "swells")) == "compiling its grammar takes too much memory"


@pytest.mark.parametrize("library", ["ebnf", "xgrammar"])
async def test_what_a_library_takes_by_itself_is_not_the_grammars(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch with CUDA alone takes more address space than a grammar may."""
    monkeypatch.setattr(module, "_MEMORY", 2**28)  # less than with torch for CPUs
    checker = GrammarChecker(f"app.engines.{library}_process")
    words = " | ".join(f'"word {i}"' for i in range(20_000))
    assert await reason(checker, Grammar("grammar", f"root ::= {words}")) == ""
    await asyncio.to_thread(checker.close)


async def test_it_knows_nothing_of_our_environment(unbounded: GrammarChecker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XYLEM_ADMIN_KEY", "a-secret")
    environment = await reason(unbounded, Grammar("grammar", "environment"))
    assert "PYTHONPATH" in environment
    assert "XYLEM" not in environment


@pytest.fixture
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits each checker that is made afterwards to one process."""
    monkeypatch.setattr(module, "_PROCESSES", 1)


@pytest.mark.usefixtures("one_at_a_time")
async def test_a_process_that_somebody_else_ended_is_not_the_grammars_fault() -> None:
    """The grammar may be sent again, and is compiled then."""
    checker = GrammarChecker()
    assert await reason(checker, USUAL) == ""
    (pid,) = pids(checker)
    os.kill(pid, signal.SIGKILL)
    other = Grammar("json", '{"type": "string"}')
    with pytest.raises(NoProcess):
        await reason(checker, other)
    assert await reason(checker, other) == ""
    await asyncio.to_thread(checker.close)


async def test_equal_grammars_are_compiled_once() -> None:
    """The same holds while the first is being compiled, and when the client that asked first has gone."""
    checker = GrammarChecker()
    first, *others = [asyncio.create_task(reason(checker, USUAL)) for _ in range(9)]
    await asyncio.sleep(0)
    assert len(checker._checking) == 1
    first.cancel()
    assert await asyncio.gather(*others) == [""] * 8
    assert len(pids(checker)) == 1
    (process,) = checker._pool._all
    os.kill(process._process.pid, signal.SIGSTOP)  # it can't be asked again
    assert await reason(checker, USUAL) == ""
    await asyncio.to_thread(checker.close)


@pytest.mark.parametrize("at_worker", [False, True])
async def test_a_client_does_not_wait_for_all_of_anothers(
    one_at_a_time: None, unbounded: GrammarChecker, monkeypatch: pytest.MonkeyPatch, at_worker: bool
) -> None:
    """The same holds in the API and at a worker, and for a grammar that the other has waiting as well."""
    monkeypatch.setattr(module, "_CPU_S", 0)
    worker = WorkerId("w")
    info = EngineInfo(16, 64, 4, 1024)
    nothing: Any = None  # which a job without media doesn't need
    requests = EngineRequests(worker, Keys("x"), nothing, nothing, info, Speeds, unbounded)

    usual = Grammar("grammar", 'start: "x"')
    answered_clients: list[str] = []

    async def asks(client: str, grammar: Grammar) -> None:
        if at_worker:
            sampling = Sampling(max_tokens=1, grammar=grammar)
            job = Job(
                RequestId("r"),
                0,
                ApiId("a"),
                [1],
                sampling,
                2e9,
                stages=[Stage("decode", PoolId("p"), worker, 0)],
                turn=client,
            )
            await requests.generation(job, None, "")
        else:
            CLIENT.set(client)
            await unbounded.verdict(grammar)
        if grammar is usual:
            answered_clients.append(client)

    one = [asyncio.create_task(asks("one", Grammar("grammar", f"hangs {i}"))) for i in range(2)]
    last = asyncio.create_task(asks("one", usual))
    await asyncio.sleep(0)  # they wait in this order
    other = asyncio.create_task(asks("other", usual))
    await asyncio.gather(last, other)
    assert answered_clients == ["other", "one"]
    await asyncio.gather(*one, return_exceptions=True)
