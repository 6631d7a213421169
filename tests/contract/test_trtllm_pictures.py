"""Pictures in TensorRT-LLM's prompts, and encoded apart by its MultimodalEncoder, on the double."""

import asyncio
import gc
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from app.engines.base import Embedding, GenerateRequest, MediaInput, PictureEncoder, PictureRequest
from app.errors import EngineFailed, HandoffFailed, RequestError, SettingsError
from app.ids import RunId
from app.media.picture import picture_of
from app.media.placeholders import pictures_of
from app.messages.job import PartialOutput, Sampling
from app.messages.kinds import Role
from app.messages.media import Media
from app.pools.schema import Pool
from app.runner.engine_factory import create_engine
from app.tokenizing.tokenizer import load_tokenizer
from tests.trtllm.contract import Use, contract
from tests.trtllm.double import installed
from tests.trtllm.generated import Package
from tests.trtllm.model import MOCK
from tests.trtllm.pictures import WIDTH

MOCK_MODEL = Path(__file__).parents[2] / "app/engines/mock/model"
SIDE = 112
ANSWER = Sampling(max_tokens=6, temperature=0.0)


@pytest.fixture
def package() -> Iterator[Package]:
    with installed() as installation:
        yield installation


@pytest.fixture(scope="module")
def sees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a model of Qwen2-VL's kind, without weights."""
    folder = tmp_path_factory.mktemp("sees")
    for file in MOCK_MODEL.glob("tokenizer*.json"):
        shutil.copy(file, folder)
    text = json.loads((MOCK_MODEL / "config.json").read_text()) | {"hidden_size": WIDTH, "dtype": "float32"}
    (token,) = load_tokenizer(MOCK_MODEL).encode("<|im_start|>", add_special_tokens=False)
    vision = {"patch_size": 14, "spatial_merge_size": 2}
    config = {"model_type": "qwen2_vl", "image_token_id": token, "text_config": text, "vision_config": vision}
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["Qwen2VLForConditionalGeneration"]}))
    return folder


@asynccontextmanager
async def engine(folder: Path, role: Role = "both", **args: Any) -> AsyncIterator[Any]:
    mock = {"speedup": 50.0, "total_blocks": 64, "media": ["image"], "embedding_width": WIDTH}
    options = {"env": {MOCK: json.dumps(mock)} if role != "encode" else {}} | args
    pool = Pool(
        model="m", engine="trtllm", path=folder, max_model_len=1024, args=options, role=role, embeddings=role == "both"
    )
    loaded_engine: Any = create_engine(pool)
    try:
        info = await loaded_engine.start()
        assert info.media == ("image",)
        assert info.computes == (role != "encode")
        assert (info.embeddings is not None) == (role == "both")
        yield loaded_engine
    finally:
        await loaded_engine.close()


def question(folder: Path, *pixels: bytes) -> GenerateRequest:
    tokenizer = load_tokenizer(folder)
    family = pictures_of(folder, tokenizer, {})
    assert family is not None
    tokens, media = tokenizer.encode("What is in", add_special_tokens=False), []
    for data in pixels:
        stands = family.tokens(SIDE, SIDE)
        name = picture_of(SIDE, SIDE, data).sha256
        media.append(MediaInput(Media("image", name, (SIDE, SIDE), len(tokens), len(stands)), data))
        tokens += [*stands, *tokenizer.encode(" and this", add_special_tokens=False)]
    return GenerateRequest(RunId("a"), tokens, ANSWER, media=media)


def flat(colour: int) -> bytes:
    return bytes([colour]) * (SIDE * SIDE * 3)


async def answer(made: Any, request: GenerateRequest) -> list[int]:
    return [token async for step in made.generate(request) for token in step.tokens]


async def encoded(made: Any, request: GenerateRequest) -> list[Embedding]:
    assert isinstance(made, PictureEncoder)
    embeddings = []
    for one in request.media:
        stands = request.prompt[one.media.offset : one.media.offset + one.media.length]
        embeddings.append(await made.encode_picture(PictureRequest(RunId("e"), one, stands)))
    return embeddings


def blank(request: GenerateRequest, made: list[Embedding]) -> GenerateRequest:
    """The same with other pixels, and these encoded pictures."""
    media = [replace(one, data=flat(0), embedding=e) for one, e in zip(request.media, made, strict=True)]
    return replace(request, media=media)


@pytest.mark.usefixtures("package")
async def test_an_answer_depends_on_its_pictures(sees: Path) -> None:
    async with engine(sees) as loaded_engine:
        requests = [question(sees, flat(7), flat(9)), question(sees, flat(9), flat(7)), question(sees, flat(7))]
        answers = [await answer(loaded_engine, one) for one in requests]
        assert len(set(map(tuple, answers))) == 3
        assert [await answer(loaded_engine, one) for one in requests] == answers


@pytest.mark.usefixtures("package")
async def test_encoded_apart_the_answer_is_that_of_the_pixels(sees: Path) -> None:
    """The engine that answers has blank pictures beside what was encoded."""
    requests = [question(sees, flat(colour), flat(255 - colour)) for colour in (1, 2, 3)]
    async with engine(sees, "encode") as encoder:
        embedding_lists = [await encoded(encoder, one) for one in requests]
        assert {(e.rows, e.width, e.dtype) for two in embedding_lists for e in two} == {(16, WIDTH, "float32")}
        with pytest.raises(EngineFailed, match="pictures only"):
            await answer(encoder, requests[0])
    async with engine(sees) as decoder:
        together = [await answer(decoder, one) for one in requests]
        apart = [await answer(decoder, blank(one, two)) for one, two in zip(requests, embedding_lists, strict=True)]
        assert apart == together
        assert await answer(decoder, question(sees, flat(0), flat(0))) not in together
        # One of the two is not encoded: then both are taken as pixels.
        half = blank(requests[0], embedding_lists[0])
        half = replace(half, media=[half.media[0], requests[0].media[1]])
        assert await answer(decoder, half) == await answer(decoder, question(sees, flat(0), flat(254)))


@pytest.mark.usefixtures("package")
async def test_a_prompt_whose_text_becomes_other_tokens_goes_with_pixels(sees: Path) -> None:
    """TensorRT-LLM takes only text with encoded pictures, and would read it as other tokens than these."""
    tokenizer, request = load_tokenizer(sees), question(sees, flat(5))
    letters = [token for letter in " the" for token in tokenizer.encode(letter, add_special_tokens=False)]
    split = replace(request, prompt=[*request.prompt, *letters])
    async with engine(sees, "encode") as encoder:
        embeddings = await encoded(encoder, request)
    async with engine(sees) as decoder:
        assert await answer(decoder, blank(request, embeddings)) == await answer(decoder, request)
        blank_one = replace(split, media=[replace(split.media[0], data=flat(0))])
        assert await answer(decoder, blank(split, embeddings)) == await answer(decoder, blank_one)


@pytest.mark.usefixtures("package")
async def test_kv_of_pictures_is_handed_over_and_the_prompt_goes_on_as_tokens(
    sees: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model's positions are in the memory of the host that has computed it: another one computes it anew."""
    requests = [question(sees, flat(1), flat(2)), question(sees, flat(3), flat(2)), question(sees)]
    async with engine(sees) as both:
        together = [await answer(both, one) for one in requests]
    async with engine(sees, "prefill") as computes, engine(sees, "decode") as decodes:
        for one, whole in zip(requests, together, strict=True):
            result = await computes.prefill(one)
            first = PartialOutput(result.output.tokens, len(result.output.text))
            pulling = replace(one, handoff=result.handoff, begun=[first])
            assert [*first.tokens, *await answer(decodes, pulling)] == whole
        result = await computes.prefill(requests[0])
        monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
        with pytest.raises(HandoffFailed, match="positions"):
            await answer(decodes, replace(requests[0], handoff=result.handoff, begun=[first]))
    assert together[0] != together[1]


def test_a_prompt_that_goes_on_as_tokens_shares_no_kv_with_other_pictures(sees: Path) -> None:
    from app.engines.trtllm.media import salt_of_pictures

    one, other = question(sees, flat(1)).media, question(sees, flat(2)).media
    salts = [salt_of_pictures(salt, media) for salt in (None, "a", "b") for media in (one, other)]
    assert len(set(salts)) == len(salts)
    assert salt_of_pictures("a", []) == "a"


@pytest.mark.usefixtures("package")
async def test_a_model_without_eyes_takes_no_pictures(sees: Path) -> None:
    request = question(sees, flat(1))
    pool = Pool(model="m", engine="trtllm", max_model_len=1024, args={"env": {MOCK: "{}"}})
    loaded_engine: Any = create_engine(pool)
    assert (await loaded_engine.start()).media == ()
    try:
        with pytest.raises(RequestError, match="pictures"):
            await answer(loaded_engine, request)
    finally:
        await loaded_engine.close()
    with pytest.raises(SettingsError, match="role=encode"):
        create_engine(pool.model_copy(update={"role": "encode"}))


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("args", [{"model": "x"}, {"encoders": 2}, {"max_batch_size": 3}, {"env": 1}])
async def test_a_bad_argument_of_the_encoder_is_named(args: dict[str, Any], sees: Path) -> None:
    with pytest.raises(SettingsError, match=next(iter(args))):
        async with engine(sees, "encode", **args):
            pass


async def use_everything(folder: Path) -> None:
    request = question(folder, flat(1), flat(2))
    async with engine(folder, "encode", tensor_parallel_size=1, max_num_tokens=4096) as encoder:
        embeddings = await encoded(encoder, request)
        assert len(embeddings[0].data) == 16 * WIDTH * 4
    async with engine(folder) as decoder:
        assert await answer(decoder, request) == await answer(decoder, blank(request, embeddings))


_OWNERS = ("MultimodalEncoder", "SharedTensorContainer", "DisaggregatedParams")


@pytest.mark.filterwarnings("ignore")  # what broke in the middle leaves sockets
def test_a_name_that_changed_is_noticed(sees: Path) -> None:
    """Each name that pictures need besides is renamed, and what worked before fails."""
    with installed() as package:
        asyncio.run(use_everything(sees))
    uses = {use for use in package.uses if use.owner in _OWNERS} | {
        Use("RequestOutput", name) for name in ("aresult", "disaggregated_params")
    }
    assert uses <= package.uses
    assert len(uses) >= 8
    unnoticed_uses = [use for use in sorted(uses) if not _noticed(use, sees)]
    gc.collect()
    assert not unnoticed_uses


def _noticed(use: Use, folder: Path) -> bool:
    with installed(contract(without=use)):
        try:
            asyncio.run(use_everything(folder))
        except Exception:  # noqa: BLE001 (however it is noticed)
            return True
    return False
