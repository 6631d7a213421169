"""LoRA adapters, on every engine that takes them."""

import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
import pytest_asyncio
from msgspec.structs import replace

from app.engines import create_engine
from app.engines.base import Adapters, GenerateRequest
from app.errors import AdapterFailed
from app.ids import RunId
from app.kv.blocks import prompt_hashes
from app.messages import PartialOutput
from app.tokenizer import load_tokenizer
from tests.contract.conftest import make_pool
from tests.contract.subject import Subject
from tests.lora import make_adapter

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),  # the first test of an engine loads it
    # vLLM and what it imports use what torch and Python have deprecated, and leave ZeroMQ contexts to the collector.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
]

_ARGS = {
    "mock": {"speedup": 10.0, "total_blocks": 256, "max_adapters": 2, "max_adapter_rank": 8},
    "vllm": {
        "kv_cache_memory_bytes": 2**28, "enable_lora": True, "max_loras": 1, "max_cpu_loras": 2, "max_lora_rank": 8
    },
}  # fmt: skip
STORY = "Once upon a time there was a cat who lived in a house by the sea, and every morning it went down to the water."


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=["mock", "vllm"])
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    pool = make_pool(request.param, args=_ARGS[request.param])
    engine = create_engine(pool)
    info = await engine.start()
    yield Subject(request.param, engine, info, load_tokenizer(pool.model_dir), set(), 6.0)
    await engine.close()
    del engine
    gc.collect()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    path = tmp_path_factory.mktemp("adapters")
    made = {name: make_adapter(path / name, seed) for seed, name in enumerate(("one", "two", "three"))}
    made["nowhere"] = path / "nowhere"
    return made


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
    """Also with its own KV in the cache, which no other finds."""
    plain, _ = await answer(subject, None)
    await loras(subject).add_adapter("a@1", folders["one"])
    await loras(subject).add_adapter("b@1", folders["two"])
    one, fresh = await answer(subject, "a@1")
    again, cached = await answer(subject, "a@1")
    two, others = await answer(subject, "b@1")
    assert one == again
    assert (fresh, others) == (0, 0)
    assert cached > 0 or subject.info.block_size > len(subject.encode(STORY))
    assert len({tuple(plain), tuple(one), tuple(two)}) == 3
    assert (await answer(subject, None))[0] == plain
    for name in ("a@1", "b@1"):
        await loras(subject).remove_adapter(name)


async def test_another_version_has_other_weights_and_no_stale_kv(subject: Subject, folders: dict[str, Path]) -> None:
    """The same name but for the version; the old one is answered with until it is removed, and then refused."""
    await loras(subject).add_adapter("swap@1", folders["one"])
    old, _ = await answer(subject, "swap@1")
    await loras(subject).add_adapter("swap@2", folders["two"])
    new, cached = await answer(subject, "swap@2")
    assert (new != old, cached) == (True, 0)
    assert (await answer(subject, "swap@1"))[0] == old
    await loras(subject).remove_adapter("swap@1")
    with pytest.raises(AdapterFailed):
        await answer(subject, "swap@1")
    assert (await answer(subject, "swap@2"))[0] == new
    await loras(subject).remove_adapter("swap@2")


async def test_its_kv_is_told_as_routing_looks_for_it(subject: Subject, folders: dict[str, Path]) -> None:
    """By the name with its version, beside a salt as well; and the model's own as ever."""
    await loras(subject).add_adapter("kv@7", folders["one"])
    prompt = subject.encode(STORY * 4)
    asked = subject.request(prompt, max_tokens=1)
    kinds = [("kv@7", "salt"), ("kv@7", None), (None, "salt"), (None, None)]
    for adapter, salt in kinds:
        request = replace(asked, id=RunId(f"kv-{adapter}-{salt}"), adapter=adapter, cache_salt=salt)
        [_ async for _ in subject.engine.generate(request)]
    ledger = await subject.replayed()
    assert ledger.unknown == 0
    there, size = set(ledger.blocks()), subject.info.block_size
    expected = [prompt_hashes(prompt, size, salt, adapter) for adapter, salt in kinds]
    assert all(len(packed) >= 16 and packed[-8:] in there for packed in expected)
    assert len(set(expected)) == len(kinds)
    await loras(subject).remove_adapter("kv@7")


async def test_what_was_not_added_is_refused(subject: Subject) -> None:
    """And never answered as the model would."""
    with pytest.raises(AdapterFailed):
        await answer(subject, "nobody@1")
    await loras(subject).remove_adapter("nobody@1")


async def test_a_bad_adapter_is_refused_and_the_engine_goes_on(subject: Subject, folders: dict[str, Path]) -> None:
    plain, _ = await answer(subject, None)
    with pytest.raises(AdapterFailed):
        await loras(subject).add_adapter("bad@1", folders["nowhere"])
    with pytest.raises(AdapterFailed):
        await answer(subject, "bad@1")
    await loras(subject).add_adapter("good@1", folders["one"])
    assert (await answer(subject, "good@1"))[0] != plain
    assert (await answer(subject, None))[0] == plain
    await loras(subject).remove_adapter("good@1")


async def test_no_more_than_it_holds(subject: Subject, folders: dict[str, Path]) -> None:
    """Or an engine would put one out, and load it again from files that may be gone by then."""
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
    begun = [PartialOutput(whole[:3], 0)]
    request = cast(GenerateRequest, replace(request, adapter="resumed@1", begun=begun))
    rest = [token async for output in subject.engine.generate(request) for token in output.tokens]
    assert whole[:3] + rest == whole
    await loras(subject).remove_adapter("resumed@1")
