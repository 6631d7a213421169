"""Pictures encoded by one vLLM and used by another, which holds blank pictures in their place."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from app.engines.base import Configured, Embedding, Engine, GenerateRequest, MediaInput, PictureEncoder, PictureRequest
from app.ids import RunId
from app.media.picture import picture_of
from app.media.placeholders import pictures_of
from app.messages.job import Sampling
from app.messages.kinds import Role
from app.messages.media import Media
from app.pools.schema import Pool
from app.runner.engine_factory import create_engine
from app.tokenizing.tokenizer import load_tokenizer
from tests.vlm import Kind, random_vlm

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.media,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]

SIDE = 112
ANSWER = Sampling(max_tokens=10, temperature=0.0)


def engine(kind: Kind, role: Role, *, apart: bool = True, **more: Any) -> Engine:
    """`apart`: it takes pictures that are encoded apart, but where it encodes them."""
    args: dict[str, Any] = {
        "dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 2**27,
        "env": {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"},
        "limit_mm_per_prompt": {"image": 2, "video": 0} if kind == "qwen2_vl" else {"image": 2},
        **more,
    }  # fmt: skip
    return create_engine(
        Pool(
            model="sees", engine="vllm", path=random_vlm(kind), role=role, embeddings=apart and role != "encode",
            max_model_len=1024, max_running=4, args=args,
        )
    )  # fmt: skip


def picture(number: int) -> bytes:
    """Stripes of two colours, of which each number has others."""
    image = Image.new("RGB", (SIDE, SIDE), (number * 37 % 256, 255 - number * 5, number * 91 % 256))
    image.paste((255 - number * 5, number * 61 % 256, 17), (0, number % 50, SIDE, number % 50 + 40))
    return image.tobytes()


@pytest.mark.parametrize(("kind", "count"), [("idefics3", 50), ("qwen2_vl", 50)])
async def test_answers_are_the_real_pictures_though_the_consumer_holds_blank_ones(kind: Kind, count: int) -> None:
    path = random_vlm(kind)
    family = pictures_of(path, load_tokenizer(path, None, "file"), {})
    assert family is not None
    placeholders = family.tokens(SIDE, SIDE)
    prompt = [9, 10, *placeholders, 11, 12]

    def media(data: bytes, salt: str = "") -> Media:
        """A picture with another hash for each salt: vLLM remembers what it has seen under a hash."""
        name = picture_of(SIDE, SIDE, data).sha256[len(salt) :] + salt
        return Media("image", name, (SIDE, SIDE), 2, len(placeholders))

    encoder = engine(kind, "encode")
    embeddings: list[Embedding] = []
    try:
        info = await encoder.start()
        assert isinstance(encoder, PictureEncoder)
        assert not info.computes
        for number in range(count):
            data = picture(number)
            request = PictureRequest(RunId(f"encode-{number}"), MediaInput(media(data), data), placeholders)
            embeddings.append(await encoder.encode_picture(request))
        again = await encoder.encode_picture(
            PictureRequest(RunId("again"), MediaInput(media(picture(0)), picture(0)), placeholders)
        )
        assert again == embeddings[0]
        assert not any(_files(encoder))
    finally:
        await encoder.close()
    assert not _folder(encoder).exists()

    consumer = engine(kind, "both")
    try:
        info = await consumer.start()
        shape = info.embeddings
        assert shape is not None
        row_count = placeholders.count(shape.token) if shape.token is not None else len(placeholders)
        assert {(one.rows, one.width, one.dtype) for one in embeddings} == {(row_count, shape.width, shape.dtype)}
        blank = bytes(SIDE * SIDE * 3)
        answers = []
        for number, embedding in enumerate(embeddings):
            data = picture(number)
            apart = await _answer(consumer, f"apart-{number}", prompt, MediaInput(media(data), blank, embedding))
            together = await _answer(consumer, f"together-{number}", prompt, MediaInput(media(data, "a"), data))
            assert apart == together, f"picture {number}"
            answers.append(apart)
        nothing = await _answer(consumer, "blank", prompt, MediaInput(media(blank), blank))
        assert nothing not in answers
        assert len(set(map(tuple, answers))) > 1
        await asyncio.sleep(6)
        assert not any(_files(consumer))
    finally:
        await consumer.close()


async def test_vllms_own_connector_shares_what_workers_that_answer_have_encoded(tmp_path: Path) -> None:
    """Encode and prefill in one engine, and its rows in a folder: another one, with blank pixels, answers with them."""
    path, data = random_vlm("idefics3"), picture(7)
    family = pictures_of(path, load_tokenizer(path, None, "file"), {})
    assert family is not None
    placeholders = family.tokens(SIDE, SIDE)
    media = Media("image", picture_of(SIDE, SIDE, data).sha256, (SIDE, SIDE), 2, len(placeholders))
    extra = {"shared_storage_path": str(tmp_path)}
    own = {"ec_connector": "ECExampleConnector", "ec_role": "ec_both", "ec_connector_extra_config": extra}
    answers = []
    for pixels in (data, bytes(SIDE * SIDE * 3)):
        worker = engine("idefics3", "both", apart=False, ec_transfer_config=own)
        try:
            assert (await worker.start()).embeddings is None
            answers.append(await _answer(worker, "one", [9, 10, *placeholders, 11, 12], MediaInput(media, pixels)))
        finally:
            await worker.close()
    assert answers[0] == answers[1]
    assert _names(tmp_path) == [media.sha256]


async def _answer(engine: Engine, run: str, prompt: list[int], one: MediaInput) -> list[int]:
    request = GenerateRequest(RunId(run), prompt, ANSWER, media=[one])
    return [token async for step in engine.generate(request) for token in step.tokens]


def _folder(engine: Engine) -> Path:
    assert isinstance(engine, Configured)
    transfer_config = engine.configuration()["AsyncEngineArgs"]["ec_transfer_config"]
    return Path(transfer_config.ec_connector_extra_config["shared_storage_path"])


def _names(folder: Path) -> list[str]:
    """The names of encoded pictures."""
    return [file.parent.name for file in folder.rglob("*.safetensors")]


def _files(engine: Engine) -> list[Path]:
    """The files of encoded pictures."""
    return list(_folder(engine).rglob("*.safetensors"))
