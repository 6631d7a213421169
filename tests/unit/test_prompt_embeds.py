"""Prompt embeddings: what is read, what is refused and how it is said, and the keys of their blocks."""

import struct
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import RequestError, SettingsError
from app.kv.blocks import prompt_hashes
from app.kv.events import BlockStored
from app.kv.ledger import Ledger
from app.media.prompt_embeds import prompt_embeds_of
from app.media.refused import Refused
from app.messages.media import Media
from app.openai.completions import understand
from app.openai.schemas import CompletionRequest
from app.pools.schema import Pool
from app.routing.needs import unmet_need
from app.schemas.validation import validated
from tests.jobs import job
from tests.leases import worker
from tests.models import asking, mock, models_of
from tests.prompt_embeds import embeds, encoded, file, rows
from tests.refusals import refused

SIZE = 4


def test_rows_are_read_in_each_dtype() -> None:
    """Rows come with a hash of dtype, shape and numbers."""
    data = rows(1, 2, 3)
    embedding = prompt_embeds_of(encoded(file(("F32", [2, 3], data), __metadata__={"by": "me"})), 3, 10)
    assert (embedding.rows, embedding.width, embedding.dtype, embedding.data) == (2, 3, "float32", data)
    halves = {kind: prompt_embeds_of(encoded(file((kind, [4, 3], data))), 3, 10) for kind in ("F16", "BF16")}
    assert [one.dtype for one in halves.values()] == ["float16", "bfloat16"]
    others = [*halves.values(), prompt_embeds_of(encoded(file(("F32", [3, 2], data))), 2, 10)]
    assert len({embedding.sha256, *(one.sha256 for one in others)}) == 4


@pytest.mark.parametrize(("data", "says"), [
    (b"", "no safetensors file"),
    (b"\x80\x02}q\x00.", "no safetensors file"),
    (b"PK\x03\x04" + bytes(100), "no safetensors file"),
    (struct.pack("<Q", 2**62) + b"{}", "no safetensors file"),
    (struct.pack("<Q", 2) + b"[]", "no safetensors file"),
    (struct.pack("<Q", 2) + b"{}", "has 0"),
    (file(("F32", [1, 3], rows(1, 1, 3)), ("F32", [1, 3], rows(1, 1, 3))), "has 2"),
    (file(("F32", [1, 3], rows(1, 1, 3))) + b"x", "no safetensors file"),
    (file(("F32", [1, 3], rows(1, 1, 3)))[:-1], "no safetensors file"),
    (file(("F64", [1, 3], bytes(24))), "its dtype has to be one of F32, F16, BF16"),
    (file(("I32", [1, 3], bytes(12))), "its dtype"),
    (file(("F32", [1, 4], bytes(16))), r"its shape has to be \(tokens, 3\), and is \(1, 4\)"),
    (file(("F32", [3], bytes(12))), "its shape"),
    (file(("F32", [1, 1, 3], bytes(12))), "its shape"),
    (file(("F32", [1, 3], bytes(8))), "fewer or more than its shape says"),
    (file(("F32", [0, 3], b"")), "from 1 to 10 rows, and has 0"),
    (file(("F16", [11, 3], bytes(66))), "from 1 to 10 rows, and has 11"),
    (file(("F32", [2**60, 3], bytes(12))), "from 1 to 10 rows"),
    (file(("F32", [True, 3], bytes(12))), "no safetensors file"),
    (file(("F32", [-1, 3], bytes(12))), "no safetensors file"),
])  # fmt: skip
def test_a_file_that_is_none_or_another_is_refused(data: bytes, says: str) -> None:
    """Pickles too: nothing of a file is ever run."""
    with pytest.raises(Refused, match=says):
        prompt_embeds_of(encoded(data), 3, 10)


@pytest.mark.parametrize("text", ["x", "a b=", "AAAA=AAA", "é" * 8, "AAAA\n"])
def test_text_that_is_no_base64_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="base64"):
        prompt_embeds_of(text, 3, 10)


def test_a_long_file_is_read_in_slices_and_too_long_a_one_not_at_all() -> None:
    data = rows(1, 1000, 200)
    text = encoded(file(("F32", [1000, 200], data)))
    assert prompt_embeds_of(text, 200, 1000).data == data
    with pytest.raises(Refused, match="base64"):  # padding where a slice ends
        prompt_embeds_of(text[: 2**18 - 1] + "=" + text[2**18 :], 200, 1000)
    with pytest.raises(Refused, match="more than"):
        prompt_embeds_of("!" * len(text), 200, 700)


@given(st.lists(st.floats(width=32), min_size=1, max_size=9), st.sampled_from(["F32", "BF16"]))
def test_only_finite_numbers_pass(numbers: list[float], kind: str) -> None:
    """The upper half of a float32 is a bfloat16."""
    data = array("f", numbers).tobytes()
    if kind == "BF16":
        data = b"".join(data[i + 2 : i + 4] for i in range(0, len(data), 4))
        values = array("f", b"".join(b"\0\0" + data[i : i + 2] for i in range(0, len(data), 2)))
    else:
        values = array("f", data)
    text = encoded(file((kind, [len(numbers), 1], data)))
    if all(abs(value) <= 3.5e38 for value in values):
        assert prompt_embeds_of(text, 1, 10).rows == len(numbers)
    else:
        with pytest.raises(Refused, match="infinite or NaN"):
            prompt_embeds_of(text, 1, 10)


@given(st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=9))
def test_only_finite_half_numbers_pass(bits: list[int]) -> None:
    data = array("H", bits).tobytes()
    values = struct.unpack(f"<{len(bits)}e", data)
    text = encoded(file(("F16", [len(bits), 1], data)))
    if all(abs(value) <= 65504 for value in values):
        assert prompt_embeds_of(text, 1, 10).dtype == "float16"
    else:
        with pytest.raises(Refused, match="infinite or NaN"):
            prompt_embeds_of(text, 1, 10)


async def plan_of(**fields: Any) -> Any:
    body = validated(CompletionRequest, {"model": "rows", "max_tokens": 5, **fields})
    rows = mock(model="rows", prompt_embeds=True, max_model_len=100)
    asks = asking(models_of(a=rows, b=mock(model="plain", max_model_len=100)))
    return (await understand(asks, body.model_dump_json(exclude_none=True).encode()))[1]


async def test_choices_of_embeddings_come_before_those_of_prompts() -> None:
    """The order is vLLM's. Each row counts as a token, and an embedding that comes twice is one."""
    plan = await plan_of(prompt=["hello", "you"], prompt_embeds=[embeds(1, 7), embeds(2, 3), embeds(1, 7)])
    assert [len(prompt) for prompt in plan.prompts][:3] == [7, 3, 7]
    assert len(plan.prompts) == 5
    first, second, third, *none = plan.media
    assert first == third
    assert first[0].sha256 != second[0].sha256
    assert (first[0].kind, first[0].shape, first[0].offset, first[0].length) == ("embeds", (7, 64), 0, 7)
    assert none == [[], []]
    assert {sample.media.sha256 for sample in plan.samples.values()} == {first[0].sha256, second[0].sha256}


@pytest.mark.parametrize("empty", ["", [], None])
async def test_beside_embeddings_an_empty_prompt_is_none(empty: Any) -> None:
    """OpenAI's client has to send one."""
    fields = {} if empty is None else {"prompt": empty}
    assert len((await plan_of(**fields, prompt_embeds=embeds(1, 7))).prompts) == 1


@pytest.mark.parametrize(("fields", "param", "says"), [
    ({"model": "plain", "prompt_embeds": embeds(1, 7)}, "prompt_embeds", "takes no prompt embeddings"),
    ({"prompt_embeds": [embeds(1, 7), embeds(1, 7, 63)]}, "prompt_embeds.1", "its shape"),
    ({"prompt_embeds": embeds(1, 7, 65)}, "prompt_embeds", "its shape"),
    ({"prompt_embeds": embeds(1, 96)}, "prompt_embeds", "maximum context length is 100"),
    ({"prompt_embeds": embeds(1, 101)}, "prompt_embeds", "from 1 to 100 rows|more than"),
    ({"prompt_embeds": [embeds(1, 7)] * 129}, "prompt_embeds", "At most 128"),
    ({"prompt_embeds": [embeds(1, 7)] * 127, "prompt": ["a", "b"]}, "prompt", "At most 128"),
    ({"prompt_embeds": embeds(1, 7), "echo": True}, "echo", "can't be used"),
    ({"prompt_embeds": embeds(1, 7), "prompt_logprobs": 0}, "prompt_logprobs", "can't be used"),
    ({"prompt_embeds": []}, "prompt", "'prompt' is missing"),
    ({}, "prompt", "'prompt' is missing"),
])  # fmt: skip
async def test_what_cant_be_served_is_refused_by_name(fields: dict[str, Any], param: str, says: str) -> None:
    with refused(param, says):
        await plan_of(**fields)


def test_a_pool_that_takes_rows_needs_to_know_their_width(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 10, "text_config": {"hidden_size": 5}}')
    assert Pool(model="m", engine="vllm", path=str(tmp_path)).hidden_size == 5
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 10}')
    with pytest.raises(SettingsError, match="hidden_size"):
        _ = Pool(model="m", engine="vllm", path=str(tmp_path)).hidden_size


def test_engines_that_take_none_refuse_by_name() -> None:
    """SGLang's and TensorRT-LLM's are such engines, whatever their pool says."""
    embeds_job = job(media=[Media("embeds", "a", (3, 64), 0, 3, dtype="float32")])
    error = unmet_need(embeds_job, [worker(media=["image"])], {"a": "prompt_embeds"})
    assert isinstance(error, RequestError)
    why = "'prompt_embeds': this model's engines take no prompt embeddings."
    assert (error.param, error.message) == ("prompt_embeds", why)


def test_keys_that_an_engine_makes_itself_are_ours_in_the_index() -> None:
    """The keys of rows are vLLM's, with the embedding's hash and offset. Keys that nobody remembers are left out."""
    own: dict[bytes, tuple[str, int] | None] = {b"1": ("e", 0), b"2": ("e", -SIZE), b"3": None}
    ledger = Ledger(SIZE, own)
    tokens = [0] * 2 * SIZE + [7] * SIZE
    ledger.apply([BlockStored([1, 2, 3], None, tokens, SIZE, extra_keys=[[b"1"], [b"2"], [b"3"]])])
    media = [Media("embeds", "e", (8, 64), 0, 2 * SIZE, dtype="float32")]
    assert b"".join(ledger.blocks()) == prompt_hashes([*tokens, 1], SIZE, media=media)
    ledger.apply([BlockStored([4], 3, [5] * SIZE, SIZE, extra_keys=[[b"4"]])])
    assert (ledger.unknown, len(ledger)) == (1, 3)


def test_two_embeddings_share_no_block() -> None:
    """An embedding shares none either with the tokens whose ids stand for it."""
    first, second = (Media("embeds", name, (8, 64), 0, 2 * SIZE, dtype="float32") for name in "ab")
    tokens = [0] * (2 * SIZE + 1)
    chains = [prompt_hashes(tokens, SIZE, media=media) for media in ([first], [second], [])]
    blocks = {chain[i : i + 8] for chain in chains for i in range(0, len(chain), 8)}
    assert len(blocks) == 6
