"""The mock engine doesn't cheat: its clock, its cache and its queues do what an engine's do."""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import pytest

from app.engines.base import EngineInfo, GenerateRequest, StepOutput
from app.engines.mock.engine import MockEngine
from app.engines.mock.grammar_state import GrammarState, grammar_states
from app.errors import EngineFailed, SettingsError
from app.ids import RequestId
from app.messages.events import GRAMMAR
from app.messages.job import Grammar, Sampling
from app.messages.kinds import GRAMMAR_KINDS
from app.pools.schema import Pool
from tests.models import mock
from tests.refusals import refused


def pool(*, max_running: int = 64, max_model_len: int | None = None, block_size: int = 32, **args: Any) -> Pool:
    seats = {"max_running": max_running, "max_model_len": max_model_len, "block_size": block_size}
    return mock(**seats, args={"kv_events": None} | args)


@asynccontextmanager
async def started(settings: Pool) -> AsyncIterator[MockEngine]:
    engine = MockEngine(settings)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def request(name: str, tokens: int = 64, *, first: int = 300, priority: int = 0, **sampling: Any) -> GenerateRequest:
    prompt = [first + i % 1000 for i in range(tokens)]
    settings = {"max_tokens": 8, "ignore_eos": True, "seed": 1} | sampling
    return GenerateRequest(RequestId(name), prompt, Sampling(**settings), priority)


async def run(engine: MockEngine, asked: GenerateRequest) -> list[StepOutput]:
    return [output async for output in engine.generate(asked)]


def tokens(outputs: list[StepOutput]) -> list[int]:
    return [token for output in outputs for token in output.tokens]


async def timed(engine: MockEngine, asked: GenerateRequest) -> float:
    began = time.perf_counter()
    await run(engine, asked)
    return time.perf_counter() - began


@pytest.mark.parametrize("seed", [-(2**63), 2**63 - 1])
async def test_a_seed_may_be_each_64_bit_integer(seed: int) -> None:
    async with started(pool(speedup=100.0)) as engine:
        assert len(tokens(await run(engine, request("a", seed=seed, temperature=1.0, n=2, max_tokens=4)))) == 2 * 4


@pytest.mark.alone
async def test_decoding_keeps_the_configured_pace() -> None:
    """Late timers don't add up over 100 steps."""
    async with started(pool(step_ms=4.0, step_ms_per_sequence=1.0, prefill_tokens_per_s=1e6)) as engine:
        assert await timed(engine, request("a", max_tokens=100)) == pytest.approx(0.5, rel=0.1)


@pytest.mark.alone
async def test_speedup_divides_the_time() -> None:
    """Twice the speed, half the wait."""
    async with started(pool(step_ms=10.0, step_ms_per_sequence=0.0, prefill_tokens_per_s=1e6, speedup=2.0)) as engine:
        assert await timed(engine, request("a", max_tokens=40)) == pytest.approx(0.2, rel=0.15)


@pytest.mark.alone
async def test_a_cached_prefix_is_cheaper() -> None:
    """The second time, only what is not cached is computed and paid for."""
    async with started(pool(prefill_tokens_per_s=20_000.0, step_ms=1.0)) as engine:
        cold = await timed(engine, request("cold", 4000, max_tokens=1))
        warm = await timed(engine, request("warm", 4000, max_tokens=1))
        assert cold == pytest.approx(0.2, rel=0.2)
        assert warm < cold / 5
        assert engine.stats().prefill_tokens == 4000 + 32


async def test_a_full_cache_forgets_the_oldest_prefix() -> None:
    """A cache of three prompts keeps the last ones."""
    async with started(pool(speedup=math.inf, total_blocks=9, max_model_len=288)) as engine:
        for name, first in (("a", 100), ("b", 600), ("c", 1100), ("d", 1600)):
            await run(engine, request(name, 96, first=first, max_tokens=1))
        again = {name: (await run(engine, request(name, 96, first=first, max_tokens=1)))[0].cached_tokens
                 for name, first in (("d", 1600), ("c", 1100), ("b", 600), ("a", 100))}  # fmt: skip
        assert (again["d"], again["c"], again["a"]) == (64, 64, 0)


async def test_a_request_waits_until_there_are_blocks() -> None:
    """Two requests run one after the other in an engine with room for one."""
    async with started(pool(step_ms=1.0, total_blocks=8, max_model_len=256, prefill_tokens_per_s=1e6)) as engine:
        first = asyncio.create_task(run(engine, request("a", 200, max_tokens=40)))
        second = asyncio.create_task(run(engine, request("b", 200, first=900, max_tokens=1)))
        await asyncio.sleep(0.02)
        assert (engine.stats().running, engine.stats().waiting) == (1, 1)
        await second
        assert first.done()


async def test_a_request_that_is_pushed_out_comes_back_with_the_same_tokens() -> None:
    """The last request waits and computes anew when the cache overflows; its answer doesn't change."""
    long, longer = request("a", 32, max_tokens=200), request("b", 32, first=900, max_tokens=200)
    async with started(pool(speedup=math.inf)) as engine:
        alone = [tokens(await run(engine, one)) for one in (long, longer)]
    async with started(pool(speedup=math.inf, total_blocks=8, max_model_len=256)) as engine:
        together = await asyncio.gather(run(engine, long), run(engine, longer))
        assert [tokens(outputs) for outputs in together] == alone
        assert engine.stats().used_blocks == 0


async def test_a_long_prompt_is_computed_in_chunks_while_others_go_on() -> None:
    """A chunk is at most what the step's budget leaves."""
    async with started(pool(step_ms=1.0, prefill_tokens_per_s=1e6, max_batched_tokens=100)) as engine:
        decoding = engine.generate(request("a", max_tokens=1000))
        await anext(decoding)
        prompt = asyncio.create_task(run(engine, request("b", 2000, first=900, max_tokens=1)))
        steps = 0
        while not prompt.done():
            await anext(decoding)
            steps += 1
        assert steps >= 2000 / 100
        await decoding.aclose()


async def test_outputs_of_one_step_arrive_in_one_iteration_of_the_loop() -> None:
    """A worker can put a whole step into one message."""
    arrivals: list[list[str]] = []

    async def consume(name: str) -> None:
        async for _ in engine.generate(request(name, first=300 + 7 * len(name), max_tokens=20)):
            if not arrivals[-1]:
                asyncio.get_running_loop().call_soon(lambda: arrivals.append([]))
            arrivals[-1].append(name)

    async with started(pool(step_ms=3.0)) as engine:
        arrivals.append([])
        await asyncio.gather(*(consume(name) for name in ("a", "bb", "ccc")))
    assert all(len(step) == 3 for step in arrivals[:-1])
    assert len(arrivals) == 21


async def test_neither_batch_nor_speed_changes_an_answer() -> None:
    """Tokens are a function of the request."""
    async with started(pool(speedup=1000.0, max_batched_tokens=64)) as engine:
        crowd = await asyncio.gather(*(run(engine, request(f"r{i}", first=300 + i)) for i in range(20)))
    async with started(pool(speedup=math.inf)) as engine:
        alone = await run(engine, request("r7", first=307))
    assert tokens(crowd[7]) == tokens(alone)


async def test_a_forced_part_of_a_character_gives_no_broken_text() -> None:
    """Bytes that make no character are held until they do."""
    async with started(pool(speedup=math.inf)) as engine:
        tokenizer = engine._vocabulary.tokenizer  # type: ignore[union-attr]
        part = tokenizer.encode("€")[0]
        assert tokenizer.decode([part]) == "\ufffd"
        outputs = await run(engine, request("a", logit_bias={part: 100.0}, temperature=0.0))
    assert (outputs[0].tokens, outputs[0].text) == ([part], "")


async def test_close_ends_requests_in_flight() -> None:
    """Nobody waits for an engine that is gone."""
    async with started(pool()) as engine:
        task = asyncio.create_task(run(engine, request("a", max_tokens=1000)))
        await asyncio.sleep(0.05)
    assert (await task)[-1].finish == "abort"
    with pytest.raises(EngineFailed):
        await run(engine, request("b"))


async def test_an_engine_that_breaks_fails_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in the engine reaches the clients as an error, those of later requests too."""
    async with started(pool()) as engine:
        task = asyncio.create_task(run(engine, request("a", max_tokens=1000)))
        await asyncio.sleep(0.03)
        monkeypatch.setattr(engine._cores[0].scheduler, "plan", lambda: 1 / 0)
        with pytest.raises(EngineFailed, match="ZeroDivisionError"):
            await task
        with pytest.raises(EngineFailed):
            await run(engine, request("b"))


async def test_loading_takes_its_time_and_may_fail() -> None:
    """Tests of what a worker does meanwhile need this."""
    began = time.perf_counter()
    with pytest.raises(EngineFailed, match="no GPU here"):
        await MockEngine(pool(load_s=0.1, fail_to_load="no GPU here")).start()
    assert time.perf_counter() - began >= 0.1


@pytest.mark.parametrize("n", [1, 3])
async def test_a_grammar_that_can_not_be_followed_ends_its_own_request_only(n: int) -> None:
    """A rule that begins with itself, and with nothing else, allows no token."""
    async with started(pool(speedup=100.0)) as engine:
        beside = asyncio.create_task(run(engine, request("beside", max_tokens=50)))
        with refused(GRAMMAR, "allows nothing here"):
            await run(engine, request("stuck", n=n, grammar=Grammar("grammar", 'start: start "x"')))
        assert len(tokens(await beside)) == 50
        assert engine.stats().used_blocks == engine.stats().running == 0


async def test_a_grammar_that_becomes_too_large_is_the_requests_fault() -> None:
    """The excess shows only to an engine that follows the grammar, in the middle of the answer."""
    token_count = 0
    grammar = Grammar("regex", "(.{1,500}){300,500}")
    async with started(pool(speedup=math.inf)) as engine:
        with refused(GRAMMAR, "too large to follow"):
            async for step in engine.generate(request("x", max_tokens=500, grammar=grammar)):
                token_count += len(step.tokens)
    assert token_count


async def test_a_grammar_without_an_end_is_refused_with_its_field() -> None:
    """llguidance notices it with the first token, or never."""
    async with started(pool(speedup=math.inf)) as engine:
        with refused(GRAMMAR, "allows nothing here"):
            await run(engine, request("x", max_tokens=50, grammar=Grammar("grammar", 'root ::= "a" root')))


async def test_grammars_are_compiled_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes tens of MB for a moment; at once they would leave as much in the allocator, for each thread."""
    now, most = 0, 0

    def slow(*args: Any) -> list[GrammarState]:
        nonlocal now, most
        now += 1
        most = max(most, now)
        time.sleep(0.02)
        now -= 1
        return grammar_states(*args)

    monkeypatch.setattr("app.engines.mock.engine.grammar_states", slow)
    digits = Grammar("regex", "[0-9]{8}")
    async with started(pool(speedup=math.inf)) as engine:
        answers = await asyncio.gather(*(run(engine, request(str(i), grammar=digits)) for i in range(6)))
    assert all(map(tokens, answers))
    assert most == 1


async def test_it_tells_what_it_holds() -> None:
    """The pool decides seats, block size and context, the arguments the number of blocks."""
    engine = MockEngine(pool(max_running=3, max_model_len=100, block_size=16, total_blocks=50))
    info = await engine.start()
    await engine.close()
    assert info == EngineInfo(
        block_size=16, total_blocks=50, max_running=3, max_model_len=100, block_bytes=4 * 2**20, grammars=GRAMMAR_KINDS,
        max_adapters=8, max_adapter_rank=64, version=version("xylem-serve"), media=("image", "audio"),
        grammar_compiler="app.grammars.process",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"step": 1}, "args.step=1"),
        ({"step_ms": "fast"}, "args.step_ms='fast'"),
        ({"step_ms": -1.0}, r"args.step_ms=-1.0"),
        ({"speedup": 0}, "args.speedup=0"),
        ({"total_blocks": 1.5}, "args.total_blocks=1.5"),
        ({"total_blocks": 2}, "args.total_blocks=2: 64 tokens don't hold one request of 8192"),
        ({"kv_events": {"port": 1}}, "args.kv_events.port=1"),
    ],
)
def test_a_bad_argument_is_named(args: dict[str, Any], message: str) -> None:
    """A pools file with a typing error stops the worker, with the key and the value."""
    with pytest.raises(SettingsError, match=message):
        MockEngine(mock(args=args))
