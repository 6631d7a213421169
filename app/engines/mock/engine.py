"""The mock engine: requests and their streams; `core.py` steps them, one core for each data-parallel rank."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from app.engines.base import (
    Embedding,
    EmbeddingShape,
    EncodeRequest,
    EngineInfo,
    EngineStats,
    GenerateRequest,
    KvEventSource,
    Node,
    PictureRequest,
    Prefilled,
    StepOutput,
)
from app.engines.checks import check_new, check_request, check_sound
from app.engines.grammar_compilers import compiler_of
from app.engines.mock import inventory
from app.engines.mock.adapters import MockAdapters
from app.engines.mock.args import MockArgs
from app.engines.mock.choice import MockChoice, Stream
from app.engines.mock.control import MockControl
from app.engines.mock.core import Core
from app.engines.mock.encoding import Encoding
from app.engines.mock.eyes import Eyes, dodged, expansion, signs_of
from app.engines.mock.grammar_state import GrammarState, grammar_states
from app.engines.mock.rendezvous import Rooms
from app.engines.mock.vocabulary import Vocabulary
from app.engines.pool_args import parsed_args
from app.engines.steps import StepMeter
from app.errors import EngineDead, EngineFailed, RequestError, SettingsError, XylemError
from app.ids import RunId
from app.messages.handoff import KvHandle, Rendezvous
from app.messages.kinds import GRAMMAR_KINDS
from app.messages.media import MediaKind
from app.pools.schema import Pool
from app.tokenizing.tokenizer import Tokenizer, load_tokenizer


class MockEngine:
    """Implements `app.engines.base.Engine`, Adapters, Disaggregated, Elastic, Encoder, PrefixResetter and Transcriber.

    `eyes.py` has PictureEncoder, `control.py` has Pauser, Sleeper, Weights, Profiler and ExpertRecorder.
    """

    transcribes = True

    def __init__(self, pool: Pool, address: str = "127.0.0.1", node: Node | None = None) -> None:
        """`node`: nothing is asked of the other hosts. Raises: SettingsError (unknown or bad arguments)."""
        self._pool = pool
        self._args = args = parsed_args(MockArgs, pool.args)
        capacity = args.total_blocks * pool.block_size
        if capacity < pool.context_len:
            raise SettingsError(
                f"args.total_blocks={args.total_blocks}: {capacity} tokens don't hold one request of {pool.context_len}"
            )
        self._rooms = Rooms(args.handoff, address)
        self._steps = StepMeter()  # of all ranks, which are alike
        self._cores = [Core(args, pool, rank, self._rooms, self._steps) for rank in range(pool.data_parallel_size)]
        self._eyes = Eyes(args)
        encodes = pool.task in ("embed", "classify")
        self._encodings = [Encoding(args, pool) for _ in self._cores] if encodes else []
        self._adapters = MockAdapters(args)
        self._streams: dict[RunId, Stream] = {}
        self._control = control = MockControl(args, self._cores, self._streams.values, self._abort, pool.tiers)
        self.pause, self.resume = control.pause, control.resume
        self.sleep, self.wake, self.is_sleeping = control.sleep, control.wake, control.is_sleeping
        self.update_weights = control.update_weights
        self.start_profile, self.stop_profile = control.start_profile, control.stop_profile
        self.record_experts = control.record_experts
        # One grammar at a time: compiling takes tens of MB for a moment, which the allocator keeps for each thread.
        self._compiling = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._arrivals = count()
        self._vocabulary: Vocabulary | None = None  # set by start
        self._failure: EngineFailed | None = None
        self._inventory: asyncio.Server | None = None

    def configuration(self) -> Mapping[str, Any]:
        return self._args.model_dump()

    async def start(self) -> EngineInfo:
        await asyncio.sleep(self._args.load_s / self._args.speedup)
        if self._args.fail_to_load is not None:
            raise EngineFailed(self._args.fail_to_load)
        tokenizer = await asyncio.to_thread(self._tokenizer)
        self._vocabulary = await asyncio.to_thread(Vocabulary, tokenizer)
        self._rooms.start()
        for core in self._cores:
            await core.start(self._broke)
        if self._args.inventory:
            self._inventory = await inventory.tell(lambda: [core.held() for core in self._cores])
        return self._info()

    async def scale(self, ranks: int) -> EngineInfo:
        if self._encodings:
            raise RequestError("A mock engine that encodes can't change its ranks.")
        for core in self._cores[ranks:]:
            await core.close()
        del self._cores[ranks:]
        for rank in range(len(self._cores), ranks):
            core = Core(self._args, self._pool, rank, self._rooms, self._steps)
            await core.start(self._broke)
            self._cores.append(core)
        return self._info()

    def _info(self) -> EngineInfo:
        return EngineInfo(
            block_size=self._pool.block_size,
            total_blocks=self._args.total_blocks,
            max_running=self._pool.max_running,
            max_model_len=self._pool.context_len,
            ranks=len(self._cores),
            block_bytes=self._args.handoff.block_bytes,
            meets_at=self._rooms.meets_at,
            grammars=GRAMMAR_KINDS,
            grammar_compiler=compiler_of("llguidance"),
            max_adapters=self._args.max_adapters,
            max_adapter_rank=self._args.max_adapter_rank,
            version=version("xylem-serve"),
            media=(*self._args.media, *(("embeds",) if self._pool.prompt_embeds else ())),
            embeddings=EmbeddingShape(self._args.embedding_width, "float32") if self._pool.embeddings else None,
            computes=self._pool.role != "encode",
            tier_block_bytes=self._args.handoff.block_bytes if self._pool.tiers and self._args.kv_events else 0,
            peers=self._pool.peers and not self._rooms.meets_at,
            signs=signs_of(self._args, self._tokenizer()),
        )

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[StepOutput, None]:
        try:
            stream = self._submit(request, await self._grammar_states(request))
        except XylemError:
            if request.handoff is not None and self._vocabulary is not None and self._failure is None:
                self._cores[0].decline(request.handoff)
            raise
        own_prompt = dodged(request) if self._args.dodges and request.written else []
        try:
            while True:
                for output in await stream.take():
                    yield replace(output, expanded=own_prompt) if own_prompt else output
                if not stream.open_choices:
                    return
        finally:
            self._drop(request.id)

    async def encode(self, request: EncodeRequest) -> bytes:
        vocabulary = self._ready()
        if not self._encodings:
            raise RequestError("This engine's task is generate.")
        self._check_rank(request)
        core = self._cores[request.rank]
        for one in request.inputs:
            self._break(one, core)
        if core.hangs:
            await asyncio.get_running_loop().create_future()
        return await self._encodings[request.rank].encode(request, vocabulary)

    async def encode_picture(self, request: PictureRequest) -> Embedding:
        self._ready()
        return await self._eyes.encode(request.picture)

    async def prefill(self, request: GenerateRequest) -> Prefilled:
        room = request.handoff
        if not isinstance(room, Rendezvous):
            return await self._lend(request)
        async with self._rooms.meet(room) as meeting:
            stream = self._submit(request, {}, lends=True)
            try:
                [output] = await stream.take()
                if output.finish is not None:  # aborted
                    raise EngineFailed("The prefill was aborted.")
                await self._cores[request.rank].handoffs.push(stream.choices[0], meeting)
                return Prefilled(None, None, output.cached_tokens)
            finally:
                self._drop(request.id)

    async def _lend(self, request: GenerateRequest) -> Prefilled:
        stream = self._submit(request, await self._grammar_states(request), lends=True)
        try:
            [output] = await stream.take()
            if output.finish is not None:
                return Prefilled(output, None, output.cached_tokens)
            handoff = self._cores[request.rank].handoffs.lend(stream.choices[0])
            return Prefilled(output if output.tokens else None, handoff, output.cached_tokens)
        finally:
            self._drop(request.id)

    async def discard(self, handoff: KvHandle) -> None:
        await self._cores[0].handoffs.decline(handoff)

    async def abort(self, request: RunId) -> None:
        stream = self._streams.get(request)
        if stream is not None:
            self._abort(stream)

    def stats(self) -> EngineStats:
        steps = self._steps.read()
        return EngineStats(
            running=sum(core.scheduler.seated for core in self._cores) + sum(bool(e.requests) for e in self._encodings),
            waiting=sum(len(core.scheduler.waiting) for core in self._cores)
            + sum(max(0, e.requests - 1) for e in self._encodings),
            used_blocks=sum(core.blocks.used for core in self._cores),
            prefill_tokens=sum(core.scheduler.prefill_tokens for core in self._cores)
            + sum(e.tokens for e in self._encodings),
            pulled_tokens=sum(core.scheduler.pulled_tokens for core in self._cores),
            lent_blocks=sum(core.handoffs.lent_blocks for core in self._cores),
            step_s=steps.base_s,
            request_step_s=steps.request_s,
            host_bytes_per_s=max(core.host_lane.speed for core in self._cores),
            store_bytes_per_s=max(core.store_lane.speed for core in self._cores),
        )

    def kv_events(self) -> dict[int, KvEventSource]:
        return {rank: core.publisher.source for rank, core in enumerate(self._cores) if core.publisher}

    async def reset_prefix_cache(self) -> bool:
        if any(core.blocks.used for core in self._cores):
            return False
        for core in self._cores:
            core.clear()
        return True

    async def add_adapter(self, name: str, path: Path) -> None:
        self._ready()
        await self._adapters.add(name, path)

    async def remove_adapter(self, name: str) -> None:
        self._adapters.remove(name)

    async def close(self) -> None:
        self._failure = self._failure or EngineFailed("The engine is closed.")
        for stream in list(self._streams.values()):
            self._abort(stream)
        self._rooms.end()
        if self._inventory is not None:
            self._inventory.close()
        for core in self._cores:
            await core.close()
        await self._rooms.close()

    async def _grammar_states(self, request: GenerateRequest) -> dict[int, GrammarState]:
        """The grammar's state for each open choice; empty without a grammar. Raises: RequestError, EngineFailed."""
        grammar = request.sampling.grammar
        if grammar is None:
            return {}
        open_ = _open_choices(request)
        answers = [request.begun[i].tokens if request.begun else [] for i in open_]
        loop = asyncio.get_running_loop()
        states = await loop.run_in_executor(self._compiling, grammar_states, self._tokenizer(), grammar, answers)
        return dict(zip(open_, states, strict=True))

    async def expansion(self, kind: MediaKind, shape: Sequence[int], number: int, of: int) -> list[int]:
        signs = {sign.kind: sign for sign in signs_of(self._args, self._tokenizer())}
        return expansion(signs[kind], shape)

    def _submit(self, request: GenerateRequest, grammars: Mapping[int, GrammarState], *, lends: bool = False) -> Stream:
        """`lends`: for `prefill`, one choice that ends with its prompt. `grammars`: from `_grammar_states`."""
        vocabulary = self._ready()
        check_new(request.id, self._streams)
        self._check_rank(request)
        check_request(request, vocabulary_size=vocabulary.size, context_len=self._pool.context_len)
        check_sound(request, self._pool.task)
        adapter = self._adapters.weights(request.adapter)
        for one in request.media:
            self._eyes.check(one)
        core = self._cores[request.rank]
        self._break(request.prompt, core)
        if not lends:
            core.handoffs.check(request)
        stream = self._streams[request.id] = Stream()
        indices = [0] if lends else _open_choices(request)
        stream.open_choices = len(indices)
        arrival, script = next(self._arrivals), self._script(request)
        for index in indices:
            choice = MockChoice(
                request,
                stream,
                vocabulary,
                index=index,
                arrival=arrival,
                context_len=self._pool.context_len,
                answer_tokens=self._args.answer_tokens,
                lends=lends,
                script=script,
                grammar=grammars.get(index),
                adapter=adapter,
                weights=self._control.weights,
            )
            stream.choices.append(choice)
            if index == 0 or lends or request.handoff is None:  # the others are added when the prompt's KV has arrived
                core.add(choice)
        return stream

    def _ready(self) -> Vocabulary:
        """Raises: EngineFailed."""
        if self._failure is not None:
            raise type(self._failure)(self._failure.message)
        if self._vocabulary is None:
            raise EngineFailed("The engine has not been started.")
        self._control.check()
        return self._vocabulary

    def _check_rank(self, request: GenerateRequest | EncodeRequest) -> None:
        """Raises: RequestError."""
        if not 0 <= request.rank < len(self._cores):
            raise RequestError(f"rank={request.rank}: this engine has {len(self._cores)}.", param="rank")

    def _script(self, request: GenerateRequest) -> list[int]:
        """The tokens of the scripted answer to this prompt, if there is one."""
        if not self._args.script or request.adapter is not None:
            return []
        tokenizer = self._tokenizer()
        prompt = tokenizer.decode(request.prompt)
        text = next((text for sign, text in self._args.script.items() if sign in prompt), "")
        return tokenizer.encode(text, add_special_tokens=False)

    def _tokenizer(self) -> Tokenizer:
        return load_tokenizer(self._pool.model_dir, self._pool.chat_template, self._pool.tokenizer_mode)

    def _break(self, tokens: list[int], core: Core) -> None:
        """Dies or hangs, if the pool's `dies_on` or `hangs_on` matches: as real engines do on some inputs."""
        if self._args.dies_on is None and self._args.hangs_on is None:
            return
        prompt = self._tokenizer().decode(tokens)
        if self._args.dies_on is not None and self._args.dies_on in prompt:
            os.kill(os.getpid(), signal.SIGKILL)
        core.hangs |= self._args.hangs_on is not None and self._args.hangs_on in prompt

    def _abort(self, stream: Stream) -> None:
        for choice in stream.choices:
            if not choice.finished:
                self._cores[choice.request.rank].remove(choice)
                stream.put(choice.abort())

    def _drop(self, request: RunId) -> None:
        stream = self._streams.pop(request)
        self._abort(stream)
        stream.choices.clear()  # they refer to it: both would wait for the garbage collector

    def _broke(self, exc: Exception) -> None:
        self._failure = EngineDead(f"The mock engine broke: {exc!r}")
        for stream in self._streams.values():
            stream.fail(self._failure)


def _open_choices(request: GenerateRequest) -> list[int]:
    return [i for i in range(request.sampling.n) if not (request.begun and request.begun[i].finished)]
