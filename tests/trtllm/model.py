"""The double's behaviour: the mock engine's model and scheduler, spoken to as TensorRT-LLM is.

The contract's words on behaviour are kept here: token ids are cumulative, a token that ends an answer is not returned,
min_tokens holds back the end of the text only, events and statistics are asked for.
"""

import asyncio
import json
import os
import pickle
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from app.engines.base import GenerateRequest, MediaInput, StepOutput
from app.engines.kv_publisher import BlockRemoved, BlockStored, EngineHash, KvEvent
from app.engines.mock.args import MockArgs
from app.engines.mock.engine import MockEngine
from app.engines.pool_args import parsed_args
from app.ids import RunId
from app.messages.events import TokenLogprob
from app.messages.handoff import KvHandle
from app.messages.job import Grammar, PartialOutput, Sampling
from app.pools.schema import Pool, Tiers
from app.tokenizing.tokenizer import load_tokenizer
from tests.trtllm.contract import Use, wire_names
from tests.trtllm.generated import Package
from tests.trtllm.pictures import Expander

MOCK = "XYLEM_TRTLLM_DOUBLE"  # environment: the mock's arguments, JSON
SESSIONS = "XYLEM_TRTLLM_DOUBLE_SESSIONS"  # environment: a file that gets the sessions of requests, a line each
WINDOWS = "XYLEM_TRTLLM_DOUBLE_WINDOWS"  # environment: of each group of layers, JSON; then events are V2's
_LOOK_S = 0.005
_WINDOW = 4096
_FINISH = {"stop": "stop", "length": "length", "abort": "cancelled"}


def _of(made: Any) -> dict[str, Any]:
    """The values of an object, without a trace that they were read."""
    values: dict[str, Any] = vars(made)["_values"]
    return values


class Told(dict[str, Any]):
    """A dictionary that remembers what was read of it."""

    def __init__(self, values: dict[str, Any], package: Package) -> None:
        renamed_key = package.contract.get("renamed")
        assert set(values) <= wire_names(), values
        super().__init__({f"{k}_renamed" if k == renamed_key else k: _told(v, package) for k, v in values.items()})
        self._uses = package.uses

    def __getitem__(self, key: str) -> Any:
        self._uses.add(Use("wire", key))
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        if key in self:
            self._uses.add(Use("wire", key))
        return super().get(key, default)


def _told(value: Any, package: Package) -> Any:
    if isinstance(value, dict):
        return Told(value, package)
    return [_told(each, package) for each in value] if isinstance(value, list) else value


class Model:
    """The model behind one LLM."""

    def __init__(self, package: Package, given: dict[str, Any]) -> None:
        self.package = package
        cache = _of(given["kv_cache_config"])
        ranks = given["tensor_parallel_size"] if given.get("enable_attention_dp") else 1
        args = {"kv_events": {}, **json.loads(os.environ.get(MOCK, "{}"))}
        self.block_size, self.longest = cache["tokens_per_block"], given["max_seq_len"]
        host = cache["host_cache_size"]
        self.pool = Pool(
            model="double", engine="mock", path=Path(given["model"]), block_size=self.block_size,
            max_running=given["max_batch_size"], max_model_len=self.longest, data_parallel_size=ranks, args=args,
            tiers=Tiers(host_gb=host / 1e9) if host else None,
        )  # fmt: skip
        self.args = parsed_args(MockArgs, args)
        self.given, self._ids = given, count(1)
        self.mock = MockEngine(self.pool)
        self.eos = load_tokenizer(self.pool.model_dir).eos_id
        self._events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._numbers = [count() for _ in range(ranks)]
        self.adapters: dict[int, Any] = {}  # by its number: under an old one it serves what that was
        self._cached: list[str] = []  # the last used one last
        self._started: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # What LLM has.
    def get_kv_cache_capacity(self) -> Any:
        tokens = self.args.total_blocks * self.block_size
        values = {"maxNumBlocks": self.args.total_blocks, "tokensPerBlock": self.block_size, "maxNumTokens": tokens}
        return Told(values, self.package)

    def get_kv_cache_events_async(self, timeout: float) -> AsyncIterator[Any]:
        assert _of(self.given["kv_cache_config"])["event_buffer_max_size"] > 0
        return self._iterate_events(timeout)

    def get_stats_async(self, timeout: float) -> AsyncIterator[Any]:
        assert self.given["enable_iter_perf_stats"]
        return self._iterate_stats(timeout)

    def generate_async(self, inputs: list[int] | dict[str, Any], sampling_params: Any, **given: Any) -> Any:
        p, media = _of(sampling_params), list[MediaInput]()
        if isinstance(inputs, dict):
            inputs, media = Expander(self.pool.model_dir).expand(inputs)
        if len(inputs) + p["max_tokens"] > self.longest:
            raise ValueError(f"{len(inputs)} tokens and {p['max_tokens']} more are over max_seq_len")
        if p["end_id"] != self.eos or p["detokenize"] or p["stop"]:
            raise ValueError("the double has no tokenizer")
        if p["guided_decoding"] is not None and not self.given.get("guided_decoding_backend"):
            raise ValueError("no guided decoding backend")
        if given.get("conversation_params") is not None and SESSIONS in os.environ:
            with Path(os.environ[SESSIONS]).open("a") as file:
                print(_of(given["conversation_params"])["conversation_id"], file=file)
        values = {"outputs": [self.package.make("CompletionOutput", **_completion())], "finished": False}
        values |= {"error": None, "cached_tokens": 0}
        generation = Generation(self, RunId(f"double-{next(self._ids)}"), inputs, p, given, media)
        output = self.package.make("RequestOutput", generation, **values)
        self.run(generation.run())
        return output

    def shutdown(self) -> None:
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)

    async def adapter(self, asked: Any) -> str | None:
        """The mock's name of it, which is loaded now if it was not asked for before."""
        if asked is None:
            return None
        if not self.given.get("enable_lora"):
            raise RuntimeError("enable_lora is off")
        first = self.adapters.setdefault(_of(asked)["lora_int_id"], asked)
        name: str = _of(first)["lora_name"]
        if name in self._cached:
            self._cached.remove(name)
        elif len(self._cached) == _of(self.given["lora_config"])["max_cpu_loras"]:
            await self.mock.remove_adapter(self._cached.pop(0))
        self._cached.append(name)
        await self.mock.add_adapter(name, Path(_of(first)["lora_path"]))
        return name

    def run(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def started(self) -> None:
        if self._started is None:
            self._loop = asyncio.get_running_loop()
            self._started = asyncio.create_task(self._start())
        await asyncio.shield(self._started)

    async def _start(self) -> None:
        await self.mock.start()
        for rank, core in enumerate(self.mock._cores):
            assert core.publisher is not None
            await core.publisher.close()
            core.publisher = Tap(self, rank)  # type: ignore[assignment]
            blocks = [self.args.total_blocks, 0]
            self.tell(rank, {"type": "created", "num_blocks_per_cache_level": blocks})

    async def _close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._started is not None:
            await self.mock.close()

    def tell(self, rank: int, data: dict[str, Any]) -> None:
        """Tells of an event; if there are several groups of layers, all have the same blocks."""
        windows = json.loads(os.environ.get(WINDOWS, "[]"))
        for group, window in enumerate(windows or [_WINDOW]):
            event = {"event_id": next(self._numbers[rank]), "window_size": window, "data": data}
            if windows:
                event |= {"layer_group_id": group, "hash_algo": "v2_sha256_64"}
            if self.pool.data_parallel_size > 1:
                event["attention_dp_rank"] = rank
            self._events.put_nowait(event)

    async def _iterate_events(self, patience: float) -> AsyncIterator[Any]:
        await self.started()
        with suppress(TimeoutError):
            while True:
                async with asyncio.timeout(patience):
                    event = await self._events.get()
                yield Told(event, self.package)

    async def _iterate_stats(self, patience: float) -> AsyncIterator[Any]:
        await self.started()
        last: dict[int, tuple[int, int, int, int]] = {}
        quiet = 0.0
        while quiet < patience:
            for rank, core in enumerate(self.mock._cores):
                scheduler = core.scheduler
                generating = sum(len(choice.tokens) > choice.prompt_len for choice in scheduler.running)
                context = scheduler.seated - generating
                now = context, generating, len(scheduler.waiting), core.blocks.used
                if now != last.get(rank, (0, 0, 0, 0)):
                    last[rank], quiet = now, 0.0
                    yield Told(self._iteration(rank, *now), self.package)
            quiet += _LOOK_S
            await asyncio.sleep(_LOOK_S)

    def _iteration(self, rank: int, context: int, generating: int, waiting: int, used: int) -> dict[str, Any]:
        running = context + generating
        return {
            "iterLatencyMS": (self.args.step_ms + running * self.args.step_ms_per_sequence) / self.args.speedup,
            "attentionDpRank": rank,
            "kvCacheStats": {"usedNumBlocks": used, "maxNumBlocks": self.args.total_blocks},
            "inflightBatchingStats": {
                "numContextRequests": context,
                "numGenRequests": generating,
                "numQueuedContextRequests": waiting,
            },
        }


class Tap:
    """A receiver of what a core of the mock tells of its cache.

    The mock copies to host memory what it has computed; here a block is in one place, and moves when it is evicted.
    """

    def __init__(self, model: Model, rank: int) -> None:
        self._model, self._rank = model, rank
        self._copied: set[EngineHash] = set()  # by the mock
        self._levels: dict[EngineHash, int] = {}

    def publish(self, events: list[KvEvent]) -> None:
        for event in events:
            if isinstance(event, BlockStored) and event.medium == "GPU":
                if {self._levels.get(block) for block in event.block_hashes} == {1}:
                    for block in event.block_hashes:
                        self._move(block, 0)
                else:
                    self._levels |= dict.fromkeys(event.block_hashes, 0)
                    self._model.tell(self._rank, self._stored(event))
            elif isinstance(event, BlockStored):
                self._copied.update(event.block_hashes)
            elif isinstance(event, BlockRemoved):
                for block in event.block_hashes:
                    self._remove(block, event.medium)

    def _remove(self, block: EngineHash, medium: str | None) -> None:
        if medium == "GPU" and block in self._copied:
            self._move(block, 1)
        elif medium == "GPU" or self._levels.get(block) == 1:
            del self._levels[block]
            self._model.tell(self._rank, {"type": "removed", "block_hashes": [block]})
        if medium != "GPU":
            self._copied.discard(block)

    def _move(self, block: EngineHash, level: int) -> None:
        change = {"type": "event_diff", "new_value": level, "old_value": self._levels[block]}
        self._levels[block] = level
        self._model.tell(self._rank, {"type": "updated", "block_hash": block, "cache_level": change})

    async def close(self) -> None:
        """Nothing is open."""

    def _stored(self, event: BlockStored) -> dict[str, Any]:
        size = event.block_size
        blocks = [
            {
                "type": "stored_block",
                "block_hash": block_hash,
                "tokens": [
                    {"type": "unique_token", "token_id": token, "token_extra_id": 0}
                    for token in event.token_ids[i * size : (i + 1) * size]
                ],
                "cache_level": 0,
                "priority": 35,
            }
            for i, block_hash in enumerate(event.block_hashes)
        ]
        data = {"type": "stored", "parent_hash": event.parent_block_hash, "blocks": blocks}
        keys = list(event.extra_keys[0] or []) if event.extra_keys else []
        names = {_of(lora_request)["lora_name"] for lora_request in self._model.adapters.values()}
        name = keys.pop(0) if keys and keys[0] in names else None
        return data | ({"lora_name": name} if name else {}) | ({"cache_salt": keys[0]} if keys else {})


def _completion() -> dict[str, Any]:
    return {
        "index": 0, "token_ids": [], "logprobs": [], "prompt_logprobs": [], "finish_reason": None, "stop_reason": None,
        "disaggregated_params": None,
    }  # fmt: skip


class Lent(msgspec.Struct):
    """The opaque state of a computed prompt."""

    handle: KvHandle
    media: int | None  # their number in what the double keeps, in this process only; None: the prompt has none


_lent = msgspec.msgpack.Decoder(Lent)
_kept: list[list[MediaInput]] = []


def _keep(media: list[MediaInput]) -> int | None:
    if not media:
        return None
    _kept.append(media)
    return len(_kept) - 1


def _positions(media: Sequence[MediaInput]) -> dict[str, Any] | None:
    """The handle of what a prompt with pictures has in the engine's memory."""
    return {"shared": [one.media.sha256 for one in media]} if media else None


class Generation:
    """The methods of a RequestOutput."""

    def __init__(
        self,
        model: Model,
        id_: RunId,
        inputs: list[int],
        p: dict[str, Any],
        given: dict[str, Any],
        media: list[MediaInput],
    ) -> None:
        self._model, self._id, self._inputs, self._p, self._given = model, id_, list(inputs), p, given
        self._media = media
        self._came: asyncio.Queue[StepOutput | Exception | KvHandle] = asyncio.Queue()
        self._aborted = False
        self._adapter: str | None = None  # the mock's
        self._again: list[StepOutput] = []  # what it is given, and gives again with the first output
        disaggregated_params = given.get("disaggregated_params")
        self._apart = _of(disaggregated_params) if disaggregated_params is not None else {}

    def abort(self) -> None:
        self._aborted = True
        self._model.run(self._model.mock.abort(self._id))

    async def step(self, it: Any) -> Any:
        values = _of(it)
        if values["finished"]:
            raise StopAsyncIteration
        while True:
            came = await self._came.get()
            if isinstance(came, Exception):
                values["finished"] = True
                raise came
            self._apply(values, came)
            if values["finished"] or self._given.get("streaming"):
                return it

    def _apply(self, values: dict[str, Any], came: StepOutput | KvHandle) -> None:
        out = _of(values["outputs"][0])
        if isinstance(came, KvHandle):
            out["disaggregated_params"] = self._model.package.make(
                "DisaggregatedParams",
                request_type="context_only",
                first_gen_tokens=out["token_ids"],
                ctx_request_id=int(self._id.rpartition("-")[2]),
                opaque_state=msgspec.msgpack.encode(Lent(came, _keep(self._media))),
                ctx_dp_rank=0,
                ctx_info_endpoint=None,
                mrope_position_ids_handle=None,
                mrope_position_deltas_handle=_positions(self._media),
            )
            values["finished"] = True
            return
        tokens = list(came.tokens)
        if came.finish == "stop" and not self._p["include_stop_str_in_output"]:
            tokens = tokens[:-1]  # the token that ended it
        out["token_ids"] += tokens
        out["logprobs"] += [self._logprob(entry) for entry in came.logprobs or []]
        if came.prompt_logprobs is not None:
            out["prompt_logprobs"] = [entry and self._logprob(entry) for entry in came.prompt_logprobs]
        out["stop_reason"] = came.stop
        values["cached_tokens"] = came.cached_tokens
        if self._apart.get("request_type") == "context_only" and came.finish is None:
            out["finish_reason"] = "length"
            return  # the handle follows
        if came.finish is not None:
            out["finish_reason"] = _FINISH[came.finish]
            values["finished"] = True

    def _logprob(self, entry: TokenLogprob) -> dict[int, Any]:
        logprobs = {entry.token_id: entry.logprob} | {id_: logprob for _, id_, logprob in entry.top}
        return {id_: self._model.package.make("Logprob", logprob=lp, rank=None) for id_, lp in logprobs.items()}

    async def run(self) -> None:
        try:
            await self._model.started()
            if self._aborted:
                self._came.put_nowait(StepOutput("", [], finish="abort"))
                return
            self._adapter = await self._model.adapter(self._given.get("lora_request"))
            if self._apart.get("request_type") == "context_only":
                await self._prefill()
                return
            async for output in self._model.mock.generate(self._request()):
                for each in (*self._again, output):
                    self._came.put_nowait(each)
                self._again = []
        except Exception as exc:  # noqa: BLE001 (whoever iterates gets it)
            self._came.put_nowait(RuntimeError(str(exc)))

    async def _prefill(self) -> None:
        request = self._request()
        longer = msgspec.structs.replace(request.sampling, max_tokens=2)  # else the mock would keep nothing
        result = await self._model.mock.prefill(msgspec.structs.replace(request, sampling=longer))
        assert result.output is not None
        self._came.put_nowait(result.output)
        if result.handoff is not None:
            self._came.put_nowait(result.handoff)

    def _request(self) -> GenerateRequest:
        """The mock's."""
        p, inputs, begun_tokens, media = self._p, self._inputs, list[int](), self._media
        sampling = _sampling(p)
        handoff = None
        if self._apart.get("request_type") == "generation_only":
            assert self._apart["disagg_request_id"] >= 2**42
            begun_tokens = self._apart["first_gen_tokens"]
            loan = _lent.decode(self._apart["opaque_state"])
            handoff, media = loan.handle, [] if loan.media is None else _kept[loan.media]
            assert not self._media, "the KV has them"
            assert self._apart["mrope_position_deltas_handle"] == _positions(media)
        forced_tokens, until = self._steered(len(begun_tokens))
        if sampling.stop_token_ids:
            sampling = msgspec.structs.replace(sampling, min_tokens=until)
        ignored_length = p["prompt_ignore_length"] or 0
        penalty = sampling.presence_penalty or sampling.frequency_penalty
        if penalty and ignored_length < len(inputs):
            inputs, begun_tokens = inputs[:ignored_length], inputs[ignored_length:]
            longer = sampling.max_tokens + len(begun_tokens)
            later = sampling.min_tokens + len(begun_tokens) if sampling.min_tokens else 0
            sampling = msgspec.structs.replace(sampling, max_tokens=longer, min_tokens=later)
        elif begun_tokens or forced_tokens:
            begun_tokens = begun_tokens or forced_tokens
            self._again = [StepOutput("", begun_tokens, logprobs=self._unknown(begun_tokens))]
        scheduling = self._given.get("scheduling_params")
        return GenerateRequest(
            self._id,
            inputs,
            sampling,
            round((0.5 - self._given["priority"]) * 1e6),
            0 if scheduling is None else _of(scheduling)["attention_dp_rank"],
            self._given.get("cache_salt"),
            handoff,
            [PartialOutput(begun_tokens)] if begun_tokens else [],
            adapter=self._adapter,
            media=media,
        )

    def _unknown(self, tokens: list[int]) -> list[TokenLogprob] | None:
        return None if self._p["logprobs"] is None else [TokenLogprob("", token, -1.0) for token in tokens]

    def _steered(self, made: int) -> tuple[list[int], int]:
        """The effect of the logits processor: the tokens that it forces, and until when it bans those that end."""
        if self._p["logits_processor"] is None:
            return [], 0
        import torch

        processor = pickle.loads(pickle.dumps(self._p["logits_processor"]))
        vocabulary = load_tokenizer(self._model.pool.model_dir).vocab_size
        forced_tokens: list[int] = []
        while True:
            logits = torch.zeros(1, 1, vocabulary)
            processor(1, logits, [self._inputs + forced_tokens], None, None)
            [allowed_tokens] = torch.isfinite(logits[0]).nonzero(as_tuple=True)[1:]
            if len(allowed_tokens) == vocabulary:
                return forced_tokens, made
            if len(allowed_tokens) == 1:
                forced_tokens.append(int(allowed_tokens[0]))
            else:
                banned_tokens = set(range(vocabulary)) - set(allowed_tokens.tolist())
                assert banned_tokens == set(self._p["stop_token_ids"])
            made += 1


def _sampling(p: dict[str, Any]) -> Sampling:
    greedy = p["top_k"] == 1 or (p["temperature"] in (None, 0) and p["top_k"] is None and p["top_p"] is None)
    guided_decoding = p["guided_decoding"]
    bias = p["embedding_bias"]
    return Sampling(
        max_tokens=p["max_tokens"],
        min_tokens=p["min_tokens"] or 0,
        temperature=0.0 if greedy else p["temperature"] or 1.0,
        top_p=p["top_p"] or 1.0,
        top_k=p["top_k"] or 0,
        min_p=p["min_p"] or 0.0,
        presence_penalty=p["presence_penalty"] or 0.0,
        frequency_penalty=p["frequency_penalty"] or 0.0,
        repetition_penalty=p["repetition_penalty"] or 1.0,
        seed=p["seed"] or 0,
        stop_token_ids=tuple(p["stop_token_ids"] or ()),
        ignore_eos=p["ignore_eos"],
        logprobs=p["logprobs"] or None,
        prompt_logprobs=p["prompt_logprobs"] or None,
        logit_bias=None if bias is None else {i: float(bias[i]) for i in bias.nonzero().flatten().tolist()},
        special_tokens=True,
        grammar=None if guided_decoding is None else _grammar(_of(guided_decoding)),
    )


def _grammar(guided: dict[str, Any]) -> Grammar:
    for field, kind in (("json", "json"), ("regex", "regex"), ("grammar", "grammar"), ("structural_tag", "tag")):
        if guided[field] is not None:
            return Grammar(kind, guided[field])  # type: ignore[arg-type]
    raise ValueError("no guide")
