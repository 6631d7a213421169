"""LoRA adapters, on every engine that takes them."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import pytest_asyncio
from msgspec.structs import replace
from safetensors.numpy import load_file, save_file

from app.engines.base import Adapters, GenerateRequest, Pauser, Sleeper, Weights
from app.errors import AdapterFailed, RequestError
from app.ids import RunId
from app.kv.blocks import prompt_hashes
from app.messages.job import PartialOutput
from app.messages.wanted import WeightsSource
from app.runner.engine_factory import create_engine
from app.tokenizing.tokenizer import load_tokenizer
from tests.contract.conftest import loading, make_pool
from tests.contract.subject import Subject
from tests.lora import MERGED, STORY, make_adapter
from tests.trtllm.model import MOCK

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),  # the first test of an engine loads it
    # vLLM and what it imports use what torch and Python have deprecated, and leave ZeroMQ contexts to the collector.
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning", "ignore::UserWarning"
    ),
]

_MOCK = {"speedup": 10.0, "total_blocks": 256, "max_adapters": 2, "max_adapter_rank": 8}
_ARGS: dict[str, dict[str, Any]] = {
    "mock": _MOCK,
    "trtllm": {
        "env": {MOCK: json.dumps(_MOCK)}, "enable_lora": True, "lora_config": {"max_cpu_loras": 2, "max_lora_rank": 8}
    },
    "vllm": {
        "kv_cache_memory_bytes": 2**28, "enable_lora": True, "max_loras": 1, "max_cpu_loras": 2, "max_lora_rank": 8
    },
    "sglang": {
        "max_total_tokens": 8192, "enable_lora": True, "max_loras_per_batch": 2, "max_loaded_loras": 2,
        "max_lora_rank": 8,
    },
}  # fmt: skip
_REAL = ("vllm", "sglang")
# "more": a tensor that is no factor; "rank": one layer has another; "no q": of what SGLang computes together, one half.
_SPOILT = {
    "narrow": _REAL,
    "half": ("trtllm", *_REAL),
    "no q": ("sglang",),
    "rank": ("sglang",),
    "more": _REAL,
}


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=["mock", "trtllm", "vllm", "sglang"])
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    pool = make_pool(request.param, args=_ARGS[request.param])
    with loading(request.param):
        engine = create_engine(pool)
        info = await engine.start()
        yield Subject(request.param, engine, info, load_tokenizer(pool.model_dir), set(), 6.0)
        await engine.close()
    del engine
    gc.collect()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    path = tmp_path_factory.mktemp("adapters")
    paths = {name: make_adapter(path / name, seed) for seed, name in enumerate((*MERGED, "three"))}
    paths["nowhere"] = path / "nowhere"
    return paths | {name: _spoilt(path / name, name) for name in _SPOILT}


def _spoilt(folder: Path, how: str) -> Path:
    """An adapter that an engine could take for a good one, until a request has it."""
    weights = make_adapter(folder, 0) / "adapter_model.safetensors"
    tensors = load_file(weights)
    if how == "half":
        weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
        return folder
    for name in list(tensors):
        if how == "narrow" and "lora_A" in name:
            tensors[name] = np.ascontiguousarray(tensors[name][:, :512])
        elif how == "no q" and "q_proj" in name:
            del tensors[name]
        elif how == "rank" and ".2." in name:
            tensors[name] = tensors[name][:4] if "lora_A" in name else np.ascontiguousarray(tensors[name][:, :4])
    if how == "more":
        tensors["base_model.model.model.layers.1.self_attn.rotary.weight"] = np.zeros((2, 2), np.float32)
    save_file(tensors, weights)
    return folder


def loras(subject: Subject) -> Adapters:
    assert isinstance(subject.engine, Adapters)
    return subject.engine


async def answer(subject: Subject, adapter: str | None, prompt: str = STORY) -> tuple[list[int], int]:
    """Its tokens, and how many of the prompt were cached."""
    request: GenerateRequest = replace(subject.request(prompt, max_tokens=8, ignore_eos=True), adapter=adapter)
    outputs = [output async for output in subject.engine.generate(request)]
    return [token for output in outputs for token in output.tokens], outputs[0].cached_tokens


async def test_it_tells_how_many_it_holds(subject: Subject) -> None:
    assert (subject.info.max_adapters, subject.info.max_adapter_rank) == (2, 8)


async def test_adapters_answer_each_in_its_way_and_the_model_as_before(
    subject: Subject, folders: dict[str, Path]
) -> None:
    """Each has its own KV in the cache, which no other finds."""
    plain, _ = await answer(subject, None)
    await loras(subject).add_adapter("a@1", folders["one"])
    await loras(subject).add_adapter("b@1", folders["two"])
    one, fresh = await answer(subject, "a@1")
    again, cached_tokens = await answer(subject, "a@1")
    two, others = await answer(subject, "b@1")
    assert one == again
    assert (fresh, others) == (0, 0)
    assert cached_tokens > 0 or subject.info.block_size > len(subject.encode(STORY))
    assert len({tuple(plain), tuple(one), tuple(two)}) == 3
    assert (await answer(subject, None))[0] == plain
    for name in ("a@1", "b@1"):
        await loras(subject).remove_adapter(name)


async def test_real_engines_answer_as_the_merged_model_does(subject: Subject, folders: dict[str, Path]) -> None:
    """All of them give the same tokens, for the model and for each adapter. The double's model is the mock's."""
    real, (plain, _) = subject.name in _REAL, await answer(subject, None)
    assert not real or plain == [216, *(28, 284) * 3, 28]
    for name, tokens in MERGED.items():
        await loras(subject).add_adapter(f"{name}@4", folders[name])
        answer_tokens, _ = await answer(subject, f"{name}@4")
        assert answer_tokens == tokens if real else answer_tokens != plain
        await loras(subject).remove_adapter(f"{name}@4")


async def test_another_version_has_other_weights_and_no_stale_kv(subject: Subject, folders: dict[str, Path]) -> None:
    """The same name but for the version; the old one is answered with until it is removed, and then refused."""
    await loras(subject).add_adapter("swap@1", folders["one"])
    old, _ = await answer(subject, "swap@1")
    await loras(subject).add_adapter("swap@2", folders["two"])
    new, cached_tokens = await answer(subject, "swap@2")
    assert (new != old, cached_tokens) == (True, 0)
    assert (await answer(subject, "swap@1"))[0] == old
    await loras(subject).remove_adapter("swap@1")
    with pytest.raises(AdapterFailed):
        await answer(subject, "swap@1")
    assert (await answer(subject, "swap@2"))[0] == new
    await loras(subject).remove_adapter("swap@2")


async def test_its_kv_is_told_as_routing_looks_for_it(subject: Subject, folders: dict[str, Path]) -> None:
    """The key is the name with its version, beside a salt as well; the model's own KV is told as ever."""
    await loras(subject).add_adapter("kv@7", folders["one"])
    prompt = subject.encode(STORY * 4)
    base_request = subject.request(prompt, max_tokens=1)
    kinds = [("kv@7", "salt"), ("kv@7", None), (None, "salt"), (None, None)]
    for adapter, salt in kinds:
        request = replace(base_request, id=RunId(f"kv-{adapter}-{salt}"), adapter=adapter, cache_salt=salt)
        [_ async for _ in subject.engine.generate(request)]
    ledger = await subject.replayed()
    assert ledger.unknown == 0
    there, size = set(ledger.blocks()), subject.info.block_size
    expected_hashes = [prompt_hashes(prompt, size, salt, adapter) for adapter, salt in kinds]
    assert all(len(hashes) >= 16 and hashes[-8:] in there for hashes in expected_hashes)
    assert len(set(expected_hashes)) == len(kinds)
    await loras(subject).remove_adapter("kv@7")


async def test_what_was_not_added_is_refused(subject: Subject) -> None:
    """No such request is answered as the model would."""
    with pytest.raises(AdapterFailed):
        await answer(subject, "nobody@1")
    await loras(subject).remove_adapter("nobody@1")


@pytest.mark.parametrize("spoilt", ["nowhere", *_SPOILT])
async def test_a_bad_adapter_is_refused_and_the_engine_goes_on(
    subject: Subject, folders: dict[str, Path], spoilt: str
) -> None:
    """Another engine may take the same adapter."""
    plain, _ = await answer(subject, None)
    takes = subject.name not in _SPOILT.get(spoilt, (subject.name,))
    with nullcontext() if takes else pytest.raises(AdapterFailed):
        await loras(subject).add_adapter("bad@1", folders[spoilt])
    with nullcontext() if takes else pytest.raises(AdapterFailed):
        await answer(subject, "bad@1")
    await loras(subject).remove_adapter("bad@1")
    for name in ("one", "two"):  # it has left no trace: both slots are free
        await loras(subject).add_adapter(f"{name}@9", folders[name])
        assert (await answer(subject, f"{name}@9"))[0] != plain
    for name in ("one", "two"):
        await loras(subject).remove_adapter(f"{name}@9")


async def test_no_more_than_it_holds(subject: Subject, folders: dict[str, Path]) -> None:
    """An engine would otherwise put one out, and load it again from files that may be gone by then."""
    for name in ("one", "two"):
        await loras(subject).add_adapter(f"{name}@1", folders[name])
    with pytest.raises(AdapterFailed, match="2 adapters"):
        await loras(subject).add_adapter("three@1", folders["three"])
    for name in ("one", "two"):
        await loras(subject).remove_adapter(f"{name}@1")
    await loras(subject).add_adapter("three@1", folders["three"])
    assert (await answer(subject, "three@1"))[0]
    await loras(subject).remove_adapter("three@1")


async def test_resumed_answers_keep_their_adapter(subject: Subject, folders: dict[str, Path]) -> None:
    """Behind what is out already, the rest is that adapter's."""
    await loras(subject).add_adapter("resumed@1", folders["one"])
    whole, _ = await answer(subject, "resumed@1")
    request = subject.request(STORY, max_tokens=8, ignore_eos=True)
    parts = [PartialOutput(whole[:3], 0)]
    request = cast(GenerateRequest, replace(request, adapter="resumed@1", begun=parts))
    rest = [token async for output in subject.engine.generate(request) for token in output.tokens]
    assert whole[:3] + rest == whole
    await loras(subject).remove_adapter("resumed@1")


async def test_adapters_outlive_a_deep_sleep_and_other_weights(
    subject: Subject, folders: dict[str, Path], other_weights: Path
) -> None:
    """The weights are the model's, which adapters change as before; its KV of before is nobody's."""
    engine = subject.engine
    if not isinstance(engine, Sleeper):
        assert subject.name in ("trtllm", "sglang")  # engines that can't sleep, nor change weights
        return
    assert isinstance(engine, Pauser)
    assert isinstance(engine, Weights)
    await loras(subject).add_adapter("deep@1", folders["one"])
    old, plain = await answer(subject, "deep@1"), await answer(subject, None)
    await engine.sleep(2, "abort")
    await engine.wake()
    await engine.update_weights("v2", WeightsSource(str(other_weights)))
    await engine.resume()
    new, cached_tokens = await answer(subject, "deep@1")
    others, _ = await answer(subject, None)
    assert len({tuple(tokens) for tokens in (old[0], plain[0], new, others)}) == 4
    assert cached_tokens == 0
    await engine.pause("wait")
    await engine.update_weights("", None)
    await engine.resume()
    assert await answer(subject, "deep@1") == (old[0], 0)
    await loras(subject).remove_adapter("deep@1")


async def test_logprobs_of_a_prompt_beside_other_requests_end_no_engine(
    subject: Subject, folders: dict[str, Path]
) -> None:
    """vLLM 0.32 dies of them on a CPU where adapters are enabled: there they are refused by name."""
    await loras(subject).add_adapter("beside@1", folders["one"])
    running = asyncio.create_task(subject.choices(STORY, max_tokens=100, ignore_eos=True))
    for adapter, n in product((None, "beside@1"), (1, 2)):
        base_request = subject.request(STORY, max_tokens=4, temperature=0.8, prompt_logprobs=1, n=n)
        request = replace(base_request, adapter=adapter)
        if subject.name == "vllm":
            with pytest.raises(RequestError, match="prompt_logprobs"):
                await anext(subject.engine.generate(request))
            continue
        logprob_lists = [
            o.prompt_logprobs async for o in subject.engine.generate(request) if o.prompt_logprobs is not None
        ]
        assert all(len(logprobs) == len(base_request.prompt) for logprobs in logprob_lists)
        assert logprob_lists
    assert len((await running)[0].tokens) == 100
    await loras(subject).remove_adapter("beside@1")
