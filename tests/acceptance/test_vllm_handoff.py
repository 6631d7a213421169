"""Two real vLLM engines: one computes prompts, the other one pulls their KV over NIXL and decodes."""

import asyncio
import dataclasses
import gc
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from itertools import count
from typing import TYPE_CHECKING, Any, cast

import psutil
import pytest
import pytest_asyncio
from msgspec.structs import replace

from app.engines.base import EngineInfo, GenerateRequest, Prefilled, StepOutput
from app.errors import HandoffFailed
from app.ids import RunId
from app.messages.events import TokenLogprob
from app.messages.handoff import KvHandle
from app.messages.job import PartialOutput, Sampling
from app.pools.schema import Pool
from app.runner.engine_factory import create_engine
from app.tokenizing.tokenizer import load_tokenizer
from tests.forkserver import forks_of
from tests.shallow import LAYERS, shallow_model
from tests.stack import free_port

if TYPE_CHECKING:
    from app.engines.vllm import VllmEngine

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
    # vLLM and what it imports use what torch and Python have deprecated, and leave ZeroMQ contexts to the collector.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
]

BLOCK = 32
TEXT = (
    "The lighthouse keeper opened the old door, looked over the grey sea and thought of the boat that was late. " * 50
)
WITH_TIERS: dict[str, Any] = {"tiers": {"host_gb": 0.1}}
PEERS: dict[str, Any] = {"role": "both", "peers": True}
_ids = count()


@dataclasses.dataclass
class Pair:
    prefill: "VllmEngine"
    decode: "VllmEngine"
    info: EngineInfo  # of the one that decodes
    text: list[int]

    def prompt(self, tokens: int) -> list[int]:
        """One that no test has used before, from its first block on."""
        start = 100 + next(_ids)
        return [start, *self.text[: tokens - 1]]

    async def handed_over(self, prompt: list[int], **sampling: Any) -> list[StepOutput]:
        """The whole answer, its first token from one engine and the others from the other one."""
        prefill = await self.prefill.prefill(asked(prompt, **sampling))
        outputs = [] if prefill.output is None else [prefill.output]
        if prefill.handoff is None:
            return outputs
        return outputs + await steps(self.decode, going_on(prompt, prefill, **sampling))

    async def both_idle(self, within_s: float = 10.0) -> None:
        """No request and no KV block, as vLLM itself counts them. What nobody fetches is lent for 20 s and more."""
        deadline = time.monotonic() + within_s
        while any(s.running or s.waiting or s.used_blocks or s.lent_blocks for s in self.stats()):
            assert time.monotonic() < deadline, self.stats()
            await asyncio.sleep(0.01)
        assert await self.prefill.reset_prefix_cache()  # refuses while blocks are held
        assert await self.decode.reset_prefix_cache()

    def stats(self) -> list[Any]:
        return [self.prefill.stats(), self.decode.stats()]


def asked(prompt: list[int], **sampling: Any) -> GenerateRequest:
    settings = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True} | sampling
    return GenerateRequest(RunId(f"run-{next(_ids)}"), prompt, Sampling(**settings))


def going_on(prompt: list[int], found: Prefilled, **sampling: Any) -> GenerateRequest:
    first = found.output
    partial_outputs = [] if first is None else [PartialOutput(first.tokens, len(first.text))]
    return replace(asked(prompt, **sampling), handoff=found.handoff, begun=partial_outputs)


async def steps(engine: "VllmEngine", request: GenerateRequest) -> list[StepOutput]:
    return [step async for step in engine.generate(request)]


def said(outputs: list[StepOutput], index: int = 0) -> tuple[list[int], str, object, object]:
    mine = [output for output in outputs if output.index == index]
    tokens = [token for output in mine for token in output.tokens]
    return tokens, "".join(output.text for output in mine), mine[-1].finish, mine[-1].stop


def logprobs(outputs: list[StepOutput]) -> list[TokenLogprob]:
    return [entry for output in outputs for entry in output.logprobs or []]


@pytest_asyncio.fixture(
    loop_scope="module",
    scope="module",
    params=[
        {},
        pytest.param(WITH_TIERS, marks=pytest.mark.tiers),
        pytest.param(PEERS, marks=pytest.mark.tiers),
        pytest.param(WITH_TIERS | PEERS, marks=pytest.mark.tiers),
    ],
    ids=["alone", "with tiers", "peers", "peers with tiers"],
)
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    """Each on its own core: on the same one they slow each other ten-fold."""
    cores = sorted(psutil.Process().cpu_affinity())
    model = shallow_model()
    engines: list[VllmEngine] = []
    infos: list[EngineInfo] = []
    for i, role in enumerate(("prefill", "decode")):
        settings = {"model": "test", "engine": "vllm", "path": model, "role": role, "block_size": BLOCK}
        settings |= request.param
        args = {"kv_cache_memory_bytes": 2**28}
        pool = Pool.model_validate(settings | {"max_running": 4, "max_model_len": 1024, "args": args})
        with forks_of("vllm"), pytest.MonkeyPatch.context() as env:  # which each engine's processes inherit
            env.setenv("VLLM_CPU_OMP_THREADS_BIND", str(cores[i % len(cores)]))
            env.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", str(free_port()))
            engines.append(cast("VllmEngine", create_engine(pool)))
            infos.append(await engines[-1].start())
    text = load_tokenizer(model).encode(TEXT, add_special_tokens=False)
    yield Pair(engines[0], engines[1], infos[1], text)
    for engine in engines:
        await engine.close()
    del engines, engine
    gc.collect()  # what vLLM leaves to the collector is collected while this module's warning filters hold


@pytest.mark.tiers
@pytest.mark.parametrize("pair", [WITH_TIERS], indirect=True, ids=["with tiers"])
async def test_a_prefix_from_host_memory_is_handed_over(pair: Pair) -> None:
    prompt = pair.prompt(300)
    first = await pair.handed_over(prompt)
    for engine in (pair.prefill, pair.decode):
        assert await engine._loaded().reset_prefix_cache()  # of its own cache only
    prefill = await pair.prefill.prefill(asked(prompt))
    assert prefill.cached_tokens >= 300 // BLOCK * BLOCK
    assert prefill.output is not None
    assert said([prefill.output, *await steps(pair.decode, going_on(prompt, prefill))]) == said(first)


@pytest.mark.tiers
@pytest.mark.parametrize("pair", [PEERS], indirect=True, ids=["peers"])
async def test_peers_take_kv_from_each_other(pair: Pair) -> None:
    """Both do so at the same time too, and while both answer requests of their own."""
    back = Pair(pair.decode, pair.prefill, pair.info, pair.text)
    prompts = [pair.prompt(300) for _ in range(4)]
    own = [
        asyncio.create_task(steps(engine, asked(prompts[0], max_tokens=64))) for engine in (pair.prefill, pair.decode)
    ]
    here, there = await asyncio.gather(pair.handed_over(prompts[1]), back.handed_over(prompts[2]))
    alone = [await steps(pair.prefill, asked(prompts[1])), await steps(pair.decode, asked(prompts[2]))]
    assert [said(here), said(there)] == [said(outputs) for outputs in alone]
    first, second = await asyncio.gather(*own)
    assert said(first) == said(second)
    assert all(outputs[1].pulled is not None for outputs in (here, there))


@pytest.mark.parametrize("tokens", [9, 8 * BLOCK, 301])
@pytest.mark.parametrize(
    "sampling",
    [
        {"logprobs": 2},
        {"frequency_penalty": 1.5, "repetition_penalty": 1.3, "max_tokens": 12},
        {"temperature": 1.5, "seed": 3},
        {"min_tokens": 4, "ignore_eos": False},
    ],
    ids=lambda sampling: next(iter(sampling)),
)
async def test_an_answer_is_the_one_that_a_single_engine_gives(
    pair: Pair, tokens: int, sampling: dict[str, Any]
) -> None:
    """Token by token, logprobs too; the decoding engine computes one token of the prompt, and nothing stays held."""
    prompt = pair.prompt(tokens)
    before = pair.decode.stats()
    outputs = await pair.handed_over(prompt, **sampling)
    after = pair.decode.stats()
    assert after.pulled_tokens - before.pulled_tokens >= tokens - 1
    assert after.prefill_tokens - before.prefill_tokens <= 1
    await pair.both_idle()

    whole = await steps(pair.prefill, asked(prompt, **sampling))
    assert said(outputs) == said(whole)
    for mine, other in zip(logprobs(outputs), logprobs(whole), strict=True):
        assert mine.token_id == other.token_id
        assert mine.logprob == pytest.approx(other.logprob, abs=1e-3)
    blocks = -(-tokens // BLOCK)
    assert [output.pulled is not None for output in outputs] == [False, True] + [False] * (len(outputs) - 2)
    assert outputs[1].pulled is not None
    assert outputs[1].pulled.size == blocks * pair.info.block_bytes == blocks * 49_152 * LAYERS  # 3 heads of 64


@pytest.mark.parametrize("include", [False, True])
async def test_a_stop_string_across_the_border_of_the_first_token_is_found(pair: Pair, include: bool) -> None:
    """Nothing of it leaks out with the first token."""
    prompt = pair.prompt(100)
    plain = await steps(pair.prefill, asked(prompt))
    border = len(plain[0].text)
    text = said(plain)[1]
    stop = text[max(0, border - 2) : border + 2]
    assert text.index(stop) < border
    settings = {"stop": ("never said", stop), "include_stop": include}
    outputs = await pair.handed_over(prompt, **settings)
    assert said(outputs)[1:] == (text[: text.index(stop) + len(stop) * include], "stop", stop)
    assert said(outputs) == said(await steps(pair.prefill, asked(prompt, **settings)))
    await pair.both_idle()


@pytest.mark.parametrize("sampling", [{"temperature": 1.0, "top_k": 1}, {"temperature": 1.5, "seed": 11}], ids=str)
async def test_several_choices_share_what_one_of_them_pulled(pair: Pair, sampling: dict[str, Any]) -> None:
    """Each has its index and its seed, and nobody frees the blocks under another."""
    prompt = pair.prompt(200)
    outputs = await pair.handed_over(prompt, n=3, logprobs=0, **sampling)
    whole = await steps(pair.prefill, asked(prompt, n=3, logprobs=0, **sampling))
    assert [said(outputs, i) for i in range(3)] == [said(whole, i) for i in range(3)]
    assert len({said(outputs, i)[1] for i in range(3)}) == (1 if "top_k" in sampling else 3)
    await pair.both_idle()


async def test_closing_an_answer_of_several_choices_ends_them_all(pair: Pair) -> None:
    """The choices are two requests to vLLM."""
    prompt = pair.prompt(100)
    prefill = await pair.prefill.prefill(asked(prompt, n=3, temperature=1.0))
    async with aclosing(
        pair.decode.generate(going_on(prompt, prefill, n=3, temperature=1.0, max_tokens=500))
    ) as stream:
        async for step in stream:
            if step.index == 2:
                assert step.finish is None
                break
        else:
            pytest.fail("the third choice never began")
    await pair.both_idle()


@pytest.mark.parametrize("n", [1, 3])
async def test_an_abort_ends_all_choices(pair: Pair, n: int) -> None:
    """The request's id alone is enough."""
    prompt = pair.prompt(100)
    prefill = await pair.prefill.prefill(asked(prompt, n=n, temperature=1.0))
    request = going_on(prompt, prefill, n=n, temperature=1.0, max_tokens=500)
    ends = set()
    async for step in pair.decode.generate(request):
        if step.finish is not None:
            ends.add((step.index, step.finish))
        elif step.index == n - 1:
            await pair.decode.abort(request.id)
    assert ends == {(i, "abort") for i in range(n)}
    await pair.both_idle()


async def test_what_is_lent_is_counted_until_it_is_discarded(pair: Pair) -> None:
    """The holder frees it at once, not when its lease ends."""
    prefill = await pair.prefill.prefill(asked(pair.prompt(10 * BLOCK)))
    await asyncio.sleep(0.5)
    stats = pair.prefill.stats()
    assert (stats.running, stats.used_blocks, stats.lent_blocks) == (0, 10, 10)
    assert isinstance(prefill.handoff, KvHandle)
    assert prefill.handoff.tokens == 10 * BLOCK
    discarding = asyncio.create_task(pair.decode.discard(prefill.handoff))
    await pair.both_idle()
    await discarding


async def test_a_cancelled_prefill_frees_its_blocks(pair: Pair) -> None:
    """Nobody will come for them. Of more than the engine computes at once, some are amid it when the first one ends."""
    tasks = [asyncio.create_task(pair.prefill.prefill(asked(pair.prompt(900)))) for _ in range(12)]
    ended_tasks, pending_tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending_tasks:
        task.cancel()
    await asyncio.wait(pending_tasks)
    assert all(task.cancelled() for task in pending_tasks)
    for handoff in [task.result().handoff for task in ended_tasks]:
        assert handoff is not None
        await pair.decode.discard(handoff)
    await pair.both_idle()


async def test_an_answer_of_one_token_is_handed_to_nobody(pair: Pair) -> None:
    """Its KV isn't even kept."""
    prompt = pair.prompt(50)
    prefill = await pair.prefill.prefill(asked(prompt, max_tokens=1, stop=("a rather long stop string",)))
    assert prefill.handoff is None
    assert prefill.output is not None
    assert (prefill.output.finish, bool(prefill.output.text)) == ("length", True)
    await pair.both_idle()


async def test_an_expired_handoff_is_refused(pair: Pair) -> None:
    """Other KV may lie there by now."""
    prompt = pair.prompt(50)
    prefill = await pair.prefill.prefill(asked(prompt))
    assert prefill.handoff is not None
    assert time.time() + 20 < prefill.handoff.expires < time.time() + 30
    late = replace(prefill, handoff=replace(prefill.handoff, expires=time.time()))
    with pytest.raises(HandoffFailed, match="expired"):
        await steps(pair.decode, going_on(prompt, late))
    other = replace(prefill.handoff, params=prefill.handoff.params | {"compatible": {"block_size": 16}})
    with pytest.raises(HandoffFailed):
        await steps(pair.decode, going_on(prompt, replace(prefill, handoff=other)))
    await pair.decode.discard(prefill.handoff)
    await pair.both_idle()


async def test_a_begun_answer_goes_on_without_a_handoff(pair: Pair) -> None:
    """The answer goes on from the tokens that are out, whatever this engine would have said."""
    prompt, partial_output = pair.prompt(50), PartialOutput([2000, 5000, 6000], text_len=3)
    outputs = await steps(pair.decode, replace(asked(prompt, logprobs=0), begun=[partial_output]))
    went_on = await steps(pair.prefill, asked([*prompt, *partial_output.tokens], max_tokens=5))
    assert said(outputs)[0] == said(went_on)[0]
    assert all(len(output.logprobs or []) == len(output.tokens) for output in outputs)


async def test_an_answer_that_is_over_with_its_first_token_says_so(pair: Pair) -> None:
    """A stop token, found where the prompt was computed. Its KV is kept all the same, until somebody gives it up."""
    prompt = pair.prompt(50)
    token = said(await steps(pair.prefill, asked(prompt)))[0][0]
    prefill = await pair.prefill.prefill(asked(prompt, stop_token_ids=(token,)))
    assert prefill.output is not None
    assert (prefill.output.tokens, prefill.output.finish, prefill.output.stop) == ([token], "stop", token)
    assert isinstance(prefill.handoff, KvHandle)
    await pair.decode.discard(prefill.handoff)
    await pair.both_idle()


async def test_a_dead_holder_costs_the_handoff_and_not_the_answer(pair: Pair) -> None:
    """Last, since it kills the engine that computes prompts."""
    prompt = pair.prompt(300)
    prefill = await pair.prefill.prefill(asked(prompt))
    other = await pair.prefill.prefill(asked(pair.prompt(300)))
    whole = said(await steps(pair.prefill, asked(prompt)))
    children = [child for p in pair.prefill._processes for child in psutil.Process(p.pid).children(recursive=True)]
    for pid in [p.pid for p in pair.prefill._processes] + [child.pid for child in children]:
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
    exits, _ = await asyncio.to_thread(psutil.wait_procs, children, 5)
    assert len(exits) == len(children)
    began = time.monotonic()
    with pytest.raises(HandoffFailed):
        await steps(pair.decode, going_on(prompt, prefill))
    assert time.monotonic() - began < 10
    assert prefill.output is not None
    outputs = await steps(pair.decode, replace(going_on(prompt, prefill), handoff=None))
    assert said([prefill.output, *outputs]) == whole
    assert other.handoff is not None
    await pair.decode.discard(other.handoff)
    stats = pair.decode.stats()
    assert (stats.running, stats.waiting, stats.used_blocks) == (0, 0, 0)
