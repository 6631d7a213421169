"""Names of TensorRT-LLM that the adapter uses: each is in its contract, and one that changed there is noticed."""

import ast
import asyncio
import gc
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio
from msgspec.structs import replace
from prometheus_client import REGISTRY

from app.engines.base import Adapters, Disaggregated, Engine, GenerateRequest, KvEventSource
from app.engines.mock.vocabulary import Vocabulary
from app.ids import RunId
from app.kv.events import BlockStored, KvEvent, decode_batch
from app.messages.job import Grammar, PartialOutput, Sampling
from app.pools.schema import Pool
from app.runner.engine_factory import create_engine
from tests.lora import make_adapter
from tests.trtllm.contract import Use, contract
from tests.trtllm.double import installed
from tests.trtllm.metrics import NAME
from tests.trtllm.model import MOCK

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

ADAPTER = Path(__file__).parents[2] / "app/engines/trtllm"
PROMPT = [300 + i for i in range(100)]
SOON_S = 3.0
RICH: dict[str, Any] = {
    "temperature": 0.7, "top_p": 0.9, "top_k": 8, "min_p": 0.01, "presence_penalty": 0.1, "frequency_penalty": 0.1,
    "repetition_penalty": 1.1, "seed": 3, "logprobs": 2, "logit_bias": {301: -1.0}, "min_tokens": 3,
    "stop_token_ids": (302,), "stop": ("never said",), "prompt_logprobs": 1,
}  # fmt: skip
GRAMMARS = [
    Grammar("json", '{"enum": [1, 2]}'), Grammar("regex", "[0-9]{2}"), Grammar("choice", '["yes", "no"]'),
    Grammar("tag", json.dumps({"type": "structural_tag", "format": {"type": "const_string", "value": "x"}})),
]  # fmt: skip
EBNF = Grammar("grammar", 'root ::= "a" | "b"')  # checked in a process that imports torch for seconds: asked last


def ask(id_: str, prompt: list[int] = PROMPT, **sampling: Any) -> GenerateRequest:
    return GenerateRequest(RunId(id_), prompt, Sampling(**{"max_tokens": 4, "temperature": 0.0} | sampling))


@asynccontextmanager
async def engine(**settings: Any) -> AsyncIterator[Any]:
    mock = json.dumps({"speedup": 10.0, "total_blocks": 64, "answer_tokens": 900})
    args = {"env": {MOCK: mock}, "scheduler_config": {"enable_prefix_aware_scheduling": True}, "enable_lora": True}
    pool = Pool(model="m", engine="trtllm", max_model_len=1024, data_parallel_size=2, args=args, **settings)
    loaded_engine: Any = create_engine(pool)
    if pool.role == "decode":  # a process keeps metrics of one engine
        loaded_engine.keep_metrics()
    try:
        info = await loaded_engine.start()
        assert (info.block_size, info.total_blocks, info.ranks, len(info.grammars)) == (32, 64, 2, 5)
        yield loaded_engine
    finally:
        await loaded_engine.close()


async def answer(made: Engine, request: GenerateRequest) -> list[Any]:
    return [output async for output in made.generate(request)]


async def replayed(source: KvEventSource) -> list[KvEvent]:
    """All that was published so far."""
    events: list[KvEvent] = []
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.connect(source.replay_endpoint)
        await dealer.send_multipart([b"", bytes(8)])
        while (frames := await dealer.recv_multipart())[-1]:
            events += decode_batch(frames[-1]).events
    return events


async def use_everything() -> None:
    async with engine(role="prefill") as computes, engine(role="decode", tiers={"host_gb": 1}) as decodes:
        assert isinstance(computes, Disaggregated)
        [rich] = await answer(
            decodes, replace(ask("rich", **RICH), session="s", cache_salt="salt", rank=1, priority=-3)
        )
        assert len(rich.prompt_logprobs) == len(PROMPT)
        assert len(rich.logprobs) == len(rich.tokens) == 4
        again = await answer(decodes, replace(ask("again"), cache_salt="salt", rank=1))
        assert again[0].cached_tokens == 96
        for grammar in GRAMMARS:
            await bound(decodes, grammar)
        plain = ask("apart", PROMPT[:70])
        prefill_result = await computes.prefill(plain)
        assert prefill_result.output.finish is None
        behind = PartialOutput(prefill_result.output.tokens, len(prefill_result.output.text))
        rest = await answer(decodes, replace(plain, id=RunId("behind"), begun=[behind], handoff=prefill_result.handoff))
        assert rest[0].pulled.tokens == 70
        assert [*behind.tokens, *(t for o in rest for t in o.tokens)] == [
            t for o in await answer(computes, plain) for t in o.tokens
        ]
        await adapted(decodes)
        await aborted(decodes)
        events_by_rank = {rank: await replayed(source) for rank, source in decodes.kv_events().items()}
        assert any(isinstance(e, BlockStored) and e.extra_keys == [["salt"], None, None] for e in events_by_rank[1])
        assert any(isinstance(e, BlockStored) and e.token_ids[:64] == PROMPT[:64] for e in events_by_rank[0])
        assert any(isinstance(e, BlockStored) and e.lora_name == "sql@1" for e in events_by_rank[0])
        assert all(isinstance(e, BlockStored) for e in events_by_rank[0] + events_by_rank[1])
        await evicted(decodes)
        await measured()
        await bound(decodes, EBNF)


async def measured() -> None:
    """The decoding engine's own metrics are in this process's registry."""
    labels = {"model_name": "m", "engine_type": "trtllm"}
    async with asyncio.timeout(SOON_S):
        while REGISTRY.get_sample_value(NAME, labels) is None:
            await asyncio.sleep(0.01)


async def bound(made: Engine, grammar: Grammar) -> None:
    """Whole, and again from the middle."""
    outputs = await answer(made, ask(grammar.kind, grammar=grammar, max_tokens=8))
    out = PartialOutput(outputs[0].tokens, len(outputs[0].text))
    rest = await answer(made, replace(ask("rest", grammar=grammar, max_tokens=8), begun=[out]))
    assert [t for o in rest for t in o.tokens] == [t for o in outputs[1:] for t in o.tokens]
    assert rest[-1].finish == "stop"


async def evicted(made: Engine) -> None:
    for first in (1000, 1040):  # each fills half the cache
        await answer(made, ask(f"from {first}", [first + i for i in range(1000)]))
    media: set[str | None] = set()
    async with asyncio.timeout(SOON_S):
        while "CPU" not in media:
            await asyncio.sleep(0.01)
            media = {e.medium for e in await replayed(made.kv_events()[0]) if isinstance(e, BlockStored)}


async def adapted(made: Engine) -> None:
    assert isinstance(made, Adapters)
    with tempfile.TemporaryDirectory() as folder:
        await made.add_adapter("sql@1", make_adapter(Path(folder) / "sql", 0))
        [one, *_] = await answer(made, replace(ask("sql"), adapter="sql@1"))
        [other, *_] = await answer(made, ask("plain"))
        assert one.tokens != other.tokens


async def aborted(made: Engine) -> None:
    """Runs that are told to stop, once the statistics of both ranks are in."""
    long = {"max_tokens": 400, "ignore_eos": True}
    requests = [replace(ask(f"long{i}", [i + 9] * 600, **long), rank=i) for i in range(2)]
    async with AsyncExitStack() as streaming, asyncio.timeout(SOON_S):
        streams = [await streaming.enter_async_context(aclosing(made.generate(request))) for request in requests]
        for stream in streams:
            await anext(stream)
        while made.stats().used_blocks <= 36:  # one rank alone has at most 32, and 4 of the request before
            await anext(streams[0])
        requests.append(replace(ask("another", [7] * 100, **long), rank=1))
        streams.append(await streaming.enter_async_context(aclosing(made.generate(requests[-1]))))
        while not made.stats().request_step_s:  # known when steps of one and of two requests were told
            await anext(streams[-1])
        assert made.stats().running == 3
        for request in requests:
            await made.abort(request.id)
        for stream in streams:
            assert [o.finish async for o in stream][-1] == "abort"


@pytest.fixture(scope="module")
def uses() -> set[Use]:
    """The names that the adapter uses where nothing is amiss."""
    with installed() as package:
        asyncio.run(use_everything())
    return package.uses


def test_every_keyword_that_is_passed_is_in_the_contract_and_was_seen_by_the_double(uses: set[Use]) -> None:
    """The double is strict, so what it has seen is there; this says that it has seen all of them."""
    classes = contract()["classes"]
    keyword_uses = set()
    for file in ADAPTER.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                owner, prefix = ("LLM", f"{name}.") if name == "generate_async" else (name, "")
                if owner == "MetricsCollector":  # it has no fields
                    prefix = "__init__."
                if owner in classes:
                    keyword_uses |= {Use(owner, f"{prefix}{keyword.arg}") for keyword in node.keywords if keyword.arg}
    assert len(keyword_uses) > 30
    assert keyword_uses <= uses


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")  # what broke in the middle leaves sockets
def test_a_name_that_changed_is_noticed(uses: set[Use], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each name that the adapter passes or reads is renamed, and what worked before fails."""
    monkeypatch.setattr("app.engines.mock.engine.Vocabulary", cache(Vocabulary))  # made for each engine otherwise
    unnoticed_uses = [use for use in sorted(uses) if not noticed(use)]
    gc.collect()
    assert not unnoticed_uses


def noticed(use: Use) -> bool:
    with installed(contract(without=use)):
        try:
            asyncio.run(use_everything())
        except Exception:  # noqa: BLE001 (however it is noticed)
            return True
    return False
