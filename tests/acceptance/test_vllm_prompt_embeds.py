"""Prompt embeddings on real vLLM: the rows of tokens are as good as the tokens, and wrong ones do no harm."""

from collections.abc import Iterator
from typing import Any

import pytest
from openai import APIError, OpenAI

from app.kv.blocks import prompt_hashes
from app.media.prompt_embeds import prompt_embeds_of
from app.messages.media import Media
from tests.chaos.fleet import Fleet
from tests.prompt_embeds import embeds, encoded, file
from tests.serving import client_of, outlived
from tests.shallow import shallow_model
from tests.stack import indexed_blocks, timeline, wait_until

pytestmark = [pytest.mark.timeout(900), pytest.mark.media]

POOL, MODEL, SIZE, WIDTH = "decode-pool-a", "shallow", 32, 576
ENV = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
IDS = [(number * 37) % 40_000 + 100 for number in range(150)]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    engine = {
        "model": MODEL, "engine": "vllm", "path": str(shallow_model()), "block_size": SIZE, "max_model_len": 1024,
        "max_running": 8, "prompt_embeds": True,
        "args": {"dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 2**28},
    }  # fmt: skip
    with Fleet(tmp_path_factory.mktemp("embeds") / "fleet", {POOL: engine}, apis=1, workers=2, **ENV) as f:
        yield f


@pytest.fixture
def client(fleet: Fleet) -> Iterator[OpenAI]:
    with client_of(fleet.urls()[0]) as c:
        yield c


def rows_of(ids: list[int], kind: str = "F32") -> str:
    import torch
    from safetensors.torch import load_file

    table = load_file(shallow_model() / "model.safetensors")["model.embed_tokens.weight"][ids]
    table = table.to({"F32": torch.float32, "BF16": torch.bfloat16}[kind])
    return encoded(file((kind, list(table.shape), table.contiguous().view(torch.uint8).numpy().tobytes())))


def answer(client: OpenAI, prompt: Any = "", given: Any = None, **fields: Any) -> Any:
    extra = {"ignore_eos": True} | ({} if given is None else {"prompt_embeds": given})
    options = {"max_tokens": 12, "temperature": 0} | fields
    return client.completions.create(model=MODEL, prompt=prompt, extra_body=extra, **options)


def test_the_rows_of_tokens_give_what_the_tokens_give(client: OpenAI) -> None:
    """The rows have each dtype, come several at once, and stand beside tokens."""
    reference = answer(client, IDS)
    response = answer(client, IDS, [rows_of(IDS), rows_of(IDS, "BF16")])
    assert [choice.text for choice in response.choices] == [reference.choices[0].text] * 3
    assert response.usage.prompt_tokens == 3 * len(IDS)


def test_the_index_has_the_hashes_that_the_api_computes(fleet: Fleet, client: OpenAI) -> None:
    """The same embedding meets its KV at the worker that has it, and another one finds nothing."""
    s, ids = fleet.stack, IDS[::-1]
    rows, before = rows_of(ids), indexed_blocks(fleet.stack, POOL)
    first = answer(client, given=rows)
    blocks = (len(ids) - 1) // SIZE
    wait_until(lambda: indexed_blocks(s, POOL) >= before + blocks, "the index has its blocks")
    embeds = prompt_embeds_of(rows, WIDTH, 1024)
    media = Media("embeds", embeds.sha256, (embeds.rows, embeds.width), 0, embeds.rows, dtype=embeds.dtype)
    hashes = prompt_hashes([0] * len(ids), SIZE, media=[media])
    entries = s.redis.hmget(f"{s.deployment}:cached:{POOL}", [hashes[i : i + 8] for i in range(0, len(hashes), 8)])
    assert len(entries) == blocks
    assert all(entries)
    for _ in range(3):
        again = answer(client, given=rows)
        assert again.usage.prompt_tokens_details.cached_tokens == blocks * SIZE
        assert again.choices[0].text == first.choices[0].text
    other = answer(client, given=rows_of(IDS[3:])).usage
    assert other.prompt_tokens_details is None or not other.prompt_tokens_details.cached_tokens


def test_wrong_rows_do_not_end_the_engine(client: OpenAI) -> None:
    """Rows that are refused don't end it, nor do the largest numbers that there are."""
    reference = answer(client, IDS).choices[0].text
    for wrong in (embeds(1, 10, WIDTH - 1), embeds(1, 10, WIDTH + 1), embeds(1, 1024, WIDTH), "AAAA"):
        with pytest.raises(APIError) as exc_info:
            answer(client, given=wrong)
        assert exc_info.value.param == "prompt_embeds"
    largest = b"\xff\xff\x7f\x7f" * (10 * WIDTH)
    assert answer(client, given=encoded(file(("F32", [10, WIDTH], largest)))).usage.completion_tokens == 12
    assert answer(client, IDS).choices[0].text == reference


def test_an_answer_goes_on_elsewhere_when_its_worker_is_killed(fleet: Fleet, client: OpenAI) -> None:
    """Its tokens are tokens behind the same rows. The last test: a worker is gone afterwards."""
    rows = rows_of(IDS[7:])
    whole = answer(client, IDS[7:], max_tokens=200).choices[0].text
    text, id_ = outlived(fleet.stack, POOL, answer(client, given=rows, max_tokens=200, stream=True))
    assert text == whole
    assert timeline(fleet.stack, id_)["attempts"] == 2
