"""Checks of TensorRT-LLM alone, in which its double rehearses: pictures, painting, arguments."""

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from app.engines.base import GenerateRequest, MediaInput, PictureRequest
from app.errors import SettingsError
from app.ids import RunId
from app.media.picture import picture_of
from app.media.placeholders import pictures_of
from app.messages.job import Painting, Sampling
from app.messages.media import Media
from app.painters.base import Painted, PaintRequest
from app.pools.schema import Pool
from app.runner.engine_factory import create_engine
from app.tokenizing.tokenizer import load_tokenizer
from tests.gpu import cases
from tests.gpu.place import Place
from tests.lora import make_adapter
from tests.trtllm.model import WINDOWS
from workers.library_metrics import engine_metrics

_SIDE = 112
VIDEO = {"width": 32, "height": 32, "format": "mp4", "frames": 9, "fps": 8}


async def test_a_prompt_is_handed_over_and_its_choices_are_computed_where_they_are_answered(place: Place) -> None:
    await cases.a_prompt_is_handed_over(place, "trtllm")


async def test_drafts_change_no_answer(place: Place) -> None:
    await cases.drafts_change_no_answer(place, "trtllm")


async def test_its_own_arguments_count_in_layers_and_a_bad_one_is_named(place: Place, tmp_path: Path) -> None:
    """The later layers count: what its own YAML says of a batch's size is overridden."""
    file = tmp_path / "engine.yaml"
    file.write_text("kv_cache_config: {max_tokens: 4096}\nmax_num_tokens: 512\n")
    own = {"engine_args": str(file), "override_engine_args": {"kv_cache_config": {"max_tokens": 2048}}}
    args = {"env": place.args["trtllm"].get("env", {}), **own}
    async with Place({}, place.model, place.sees, place.paints).engine("trtllm", args=args) as engine:
        assert engine.info.total_blocks * engine.info.block_size <= 2048
        assert len((await engine.answer("The sea is")).tokens) == 8
    with pytest.raises(SettingsError, match="no_such_argument"):
        async with place.engine("trtllm", args={"no_such_argument": 1}):
            pass


async def test_autodeploy_answers(place: Place) -> None:
    async with place.engine("trtllm", args={"backend": "autodeploy"}) as engine:
        assert len((await engine.answer("The sea is", ignore_eos=True)).tokens) == 8


async def test_its_own_metrics_are_shown(place: Place) -> None:
    """Its collector counts iterations in this process's registry, which is on the worker's page."""
    engine: Any = create_engine(place.pool("trtllm"))
    engine.keep_metrics()
    try:
        await engine.start()
        async for _ in engine.generate(
            GenerateRequest(RunId("a"), [5, 6, 7], Sampling(max_tokens=500, ignore_eos=True))
        ):
            pass
        async with asyncio.timeout(10):
            while not (labels := labels_of("trtllm_num_generation_requests")):
                await asyncio.sleep(0.05)
        assert labels == {"model_name": "m", "engine_type": "trtllm"}
    finally:
        await engine.close()


def labels_of(name: str) -> dict[str, str] | None:
    samples = (sample for metric in engine_metrics() for sample in metric.samples)
    return next((sample.labels for sample in samples if sample.name == name), None)


async def test_a_model_with_windows_resumes_a_prompt_where_all_its_layers_have_it(place: Place) -> None:
    """Its cache tells of each group of layers, by which the index knows what a second request finds."""
    env = dict(place.args["trtllm"].get("env", {}))
    cache = {"max_attention_window": [64, 1024], "max_tokens": 8192, "use_kv_cache_manager_v2": True}
    args = {"env": env | ({WINDOWS: "[64, 1024]"} if env else {}), "kv_cache_config": cache}
    async with place.engine("trtllm", args=args) as engine:
        assert engine.info.unindexed == ""
        assert [(group.sees, group.width) for group in engine.info.groups] == [("window", 64), ("all", 0)]
        first, again = [await engine.answer(cases.STORY, ignore_eos=True) for _ in range(2)]
        assert again.tokens == first.tokens
        assert 0 < again.cached_tokens < len(engine.encode(cases.STORY))


async def test_pictures_are_seen_and_those_encoded_apart_answer_as_their_pixels_do(place: Place) -> None:
    questions = [question(place.sees, flat(colour)) for colour in (7, 200)]
    async with place.engine("trtllm", path=place.sees, role="encode", embeddings=False) as encoder:
        embeddings = [await encoded(encoder.engine, one) for one in questions]
    async with place.engine("trtllm", path=place.sees) as sees:
        pixel_answers = [cases.tokens_of(await cases.run(sees, one)) for one in questions]
        assert pixel_answers[0] != pixel_answers[1]
        for request, embedding, tokens in zip(questions, embeddings, pixel_answers, strict=True):
            [medium] = request.media
            blank = replace(request, media=[replace(medium, data=flat(0), embedding=embedding)])
            assert cases.tokens_of(await cases.run(sees, blank)) == tokens


def question(folder: Path, pixels: bytes) -> GenerateRequest:
    tokenizer = load_tokenizer(folder)
    family = pictures_of(folder, tokenizer, {})
    assert family is not None
    start, stands = tokenizer.encode("What is in", add_special_tokens=False), family.tokens(_SIDE, _SIDE)
    name = picture_of(_SIDE, _SIDE, pixels).sha256
    medium = MediaInput(Media("image", name, (_SIDE, _SIDE), len(start), len(stands)), pixels)
    prompt = [*start, *stands, *tokenizer.encode(" and this", add_special_tokens=False)]
    return GenerateRequest(
        RunId(name), prompt, Sampling(max_tokens=6, temperature=0.0, ignore_eos=True), media=[medium]
    )


def flat(colour: int) -> bytes:
    return bytes([colour]) * (_SIDE * _SIDE * 3)


async def encoded(encoder: Any, request: GenerateRequest) -> Any:
    [medium] = request.media
    stands = request.prompt[medium.media.offset : medium.media.offset + medium.media.length]
    return await encoder.encode_picture(PictureRequest(RunId("e"), medium, stands))


async def test_an_adapter_answers_in_its_way_and_the_model_as_before(place: Place, tmp_path: Path) -> None:
    args = {"enable_lora": True, "lora_config": {"max_cpu_loras": 2, "max_lora_rank": 8}}
    async with place.engine("trtllm", args=args) as engine:
        request = engine.request(cases.STORY, ignore_eos=True)
        plain = cases.tokens_of(await cases.run(engine, request))
        adapters: Any = engine.engine
        await adapters.add_adapter("one@1", make_adapter(tmp_path / "one", 0))
        adapter_answers = [
            cases.tokens_of(await cases.run(engine, replace(request, id=RunId(f"one{number}"), adapter="one@1")))
            for number in range(2)
        ]
        assert adapter_answers[0] == adapter_answers[1] != plain
        await adapters.remove_adapter("one@1")
        assert cases.tokens_of(await cases.run(engine, replace(request, id=RunId("again")))) == plain


@pytest.mark.parametrize(("pipeline", "more"), [("flux", {}), ("wan", VIDEO)])
async def test_it_paints_the_same_bytes_for_the_same_request(place: Place, pipeline: str, more: dict[str, Any]) -> None:
    fields = {"model": "p", "engine": "trtllm", "task": "image", "path": place.paints(pipeline)}
    painter: Any = create_engine(Pool.model_validate(fields | {"painting": {"videos": bool(more)}}))
    await painter.start()
    try:
        files = [await painted(painter, seed, **more) for seed in (1, 1, 2)]
        assert files[0] == files[1] != files[2]
    finally:
        await painter.close()


async def painted(painter: Any, seed: int, **more: Any) -> bytes:
    painting = Painting(**{"prompt": "a cat", "width": 48, "height": 32, "steps": 3, "seed": seed} | more)
    async with asyncio.timeout(300), aclosing(painter.paint(PaintRequest(RunId(f"p{seed}"), painting))) as steps:
        [file] = [one.file async for one in steps if isinstance(one, Painted)]
    assert isinstance(file, bytes)
    return file
