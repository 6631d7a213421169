"""Pictures and videos on SGLang: answers are vLLM's, its cache tells them apart, and the index knows what it has."""

import asyncio
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

from app.engines.base import EngineInfo, GenerateRequest, MediaInput, PictureRequest
from app.errors import RequestError
from app.ids import RunId
from app.kv.blocks import prompt_hashes
from app.media.placeholders.places import joined
from app.messages.events import TokenLogprob
from app.messages.job import PartialOutput
from app.messages.media import Media, MediaSign
from app.runner.engine_factory import create_engine
from app.tokenizing.tokenizer import load_tokenizer
from ops.models.seeing import written
from tests.contract.conftest import loading
from tests.contract.sight import ARGS, FILMS, SIZES, Sight, film, loaded, picture, placed, pool_of
from tests.contract.subject import Subject
from tests.shallow import shallow_model
from tests.vlm import random_vlm

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.media,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def sight() -> AsyncIterator[Sight]:
    async for one in loaded("sglang"):
        yield one


@pytest.mark.asyncio(loop_scope="module")
async def test_the_answers_are_vllms(sight: Sight) -> None:
    """Requests have one picture of each size, two, none, or a video; one goes on after what another engine said."""

    async def questions(asker: Sight) -> list[GenerateRequest]:
        one = [asker.request("What?", (picture(n, *size), size)) for n, size in enumerate(SIZES)]
        two = asker.request("And?", *((picture(9, *size), size) for size in SIZES[1:3]))
        first = asker.request("What?", (picture(1, *SIZES[1]), SIZES[1]))
        films = [await asker.watching("What?", film(n, *shape), shape) for n, shape in enumerate(FILMS)]
        return [*one, two, *films, asker.request("No picture."), first]

    ours = [(await sight.answer(question)).tokens for question in await questions(sight)]
    theirs: list[list[int]] = []
    async for vllm in loaded("vllm"):
        theirs = [(await vllm.answer(question)).tokens for question in await questions(vllm)]
    assert ours == theirs
    assert len({tuple(tokens) for tokens in ours}) == len(ours) - 1, "the last question is the second"
    again = (await questions(sight))[-1]
    resumed_request = replace(again, begun=[PartialOutput(theirs[-1][:3])])
    assert (await sight.answer(resumed_request)).tokens == theirs[-1][3:]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("model", "around"),
    [("qwen3_vl", ("Look ", " What?")), ("gemma3", ("Look\n", "\n\nWhat?"))],
)
async def test_what_a_models_media_become_it_tells_as_vllm_does(
    model: str, around: tuple[str, str], tmp_path: Path
) -> None:
    """The API knows nothing of such a model's files. Both answer alike, also with a picture that is cached."""
    path = written(model, tmp_path, shallow_model(), weights=True)
    tokenizer = load_tokenizer(path, None, "file")
    before, after = (tokenizer.encode(text, add_special_tokens=False) for text in around)
    results: dict[str, list[tuple[MediaSign, list[int], list[TokenLogprob]]]] = {}
    for name, args in (ARGS | {"sglang": ARGS["sglang"] | {"enable_multimodal": True}}).items():
        limits = {} if model == "qwen3_vl" or name == "sglang" else {"limit_mm_per_prompt": {"image": 2}}
        with loading(name):
            engine: Any = create_engine(pool_of(name, path, args=args | limits))
            signs = {sign.kind: sign for sign in (await engine.start()).signs}
            subject = Subject(name, engine, EngineInfo(32, 0, 0, 0), tokenizer, set(), 6.0)
        results[name] = []
        pictures = [("image", size, picture(number % 5, *size)) for number, size in enumerate([*SIZES, SIZES[0]])]
        films = [("video", shape, film(7, *shape)) for shape in FILMS if "video" in signs]
        for kind, shape, data in [*pictures, *films]:
            sign, becomes = signs[kind], await engine.expansion(kind, shape, 0, 1)
            marker, at = placed(tokenizer.encode(sign.marker, add_special_tokens=False), sign)
            rest = marker[at + len(sign.target) :]
            prompt, where = joined([*before, *marker[:at], *becomes, *rest, *after], sign.joins)
            media = Media(kind, sha256(data).hexdigest(), shape, where[len(before) + at], len(becomes))
            request = replace(
                subject.request(prompt, logprobs=1), media=[MediaInput(media, data)],
                written=[*before, *marker, *after],
            )  # fmt: skip
            logprobs = [lp async for step in engine.generate(request) for lp in step.logprobs or ()]
            results[name].append((replace(sign, digest="", most=0, target=(), alone=False), prompt, logprobs))
        if model == "qwen3_vl":
            with pytest.raises(RequestError, match="can't take it"):
                await engine.expansion("image", (1, 300), 0, 1)
        await engine.close()
    for ours, theirs in zip(results["sglang"], results["vllm"], strict=True):
        assert ours[:2] == theirs[:2]
        assert [lp.token_id for lp in ours[2]] == [lp.token_id for lp in theirs[2]]
        assert [lp.logprob for lp in ours[2]] == pytest.approx([lp.logprob for lp in theirs[2]], abs=1e-3)
    assert len(results["sglang"]) == len(SIZES) + 1 + (len(FILMS) if model == "qwen3_vl" else 0)
    firsts = [logprobs[0].logprob for _, _, logprobs in results["vllm"]]
    assert firsts[0] == pytest.approx(firsts[len(SIZES)], abs=1e-6)
    assert len({round(logprob, 5) for logprob in firsts}) == len(firsts) - 1


@pytest.mark.asyncio(loop_scope="module")
async def test_the_cache_and_the_index_tell_pictures_apart(sight: Sight) -> None:
    """Nothing is cached of another picture of the same size, from its first token on; the index knows each block."""
    await sight.subject.clear()
    side = (448, 224)  # 128 tokens: four blocks and more
    red, blue = (picture(0, *side), side), (picture(255, *side), side)
    size = sight.subject.info.block_size
    first = await sight.answer(sight.request("What?", red))
    assert first.cached_tokens == 0
    assert (await sight.answer(sight.request("What?", red))).cached_tokens >= 4 * size
    other = await sight.answer(sight.request("What?", blue))
    assert other.cached_tokens == 0
    assert other.tokens != first.tokens
    blocks: set[bytes] = set()
    for pictures in ((red,), (blue,), (red, blue)):
        request = sight.request("What?", *pictures)
        await sight.answer(request)
        hashes = prompt_hashes(request.prompt, size, media=[one.media for one in request.media])
        blocks |= {hashes[i : i + 8] for i in range(0, len(hashes), 8)}
    ledger = await sight.subject.ledger_becomes(blocks.issubset)
    assert ledger.unknown == 0


@pytest.mark.asyncio(loop_scope="module")
async def test_answers_are_the_real_pictures_though_the_consumer_holds_blank_ones(sight: Sight) -> None:
    """The pictures are another engine's to encode; their rows and pixels of others are in one batch."""

    def salted(asked: GenerateRequest, salt: str, embeddings: list[Any] | None = None) -> GenerateRequest:
        """Pictures under names of their own; with `embeddings` they are blank."""
        media = [
            replace(one, media=replace(one.media, sha256=salt + one.media.sha256[len(salt) :])) for one in asked.media
        ]
        if embeddings is not None:
            media = [
                replace(one, data=bytes(len(one.data)), embedding=rows)
                for one, rows in zip(media, embeddings, strict=False)
            ]
        return replace(asked, id=sight.subject.request([1]).id, media=media)

    questions = [sight.request("What?", (picture(n, *size), size)) for n, size in enumerate(SIZES)]
    questions.append(sight.request("And?", *((picture(9, *size), size) for size in SIZES[1:3])))
    with loading("sglang"):
        encoder: Any = create_engine(pool_of("sglang", random_vlm("qwen2_vl"), role="encode"))
        info = await encoder.start()
    assert (info.media, info.computes) == (("image",), False)
    embeddings = [
        [await encoder.encode_picture(PictureRequest(RunId("one"), one, [])) for one in question.media]
        for question in questions
    ]
    with pytest.raises(RequestError, match="can't take it"):
        tiny = MediaInput(Media("image", "0", (1, 300)), bytes(900))
        await encoder.encode_picture(PictureRequest(RunId("two"), tiny, []))
    await encoder.close()
    shape = sight.subject.info.embeddings
    assert shape is not None
    assert {(one.width, one.dtype) for parts in embeddings for one in parts} == {(shape.width, shape.dtype)}
    pairs = list(zip(questions, embeddings, strict=True))
    together = [(await sight.answer(salted(question, "a"))).tokens for question in questions]
    apart = [(await sight.answer(salted(question, "b", rows))).tokens for question, rows in pairs]
    assert apart == together
    blank = [(await sight.answer(salted(question, "c", [None] * 2))).tokens for question in questions]
    assert all(one != other for one, other in zip(blank, together, strict=True))
    batch = [salted(question, "d", rows if n % 2 else None) for n, (question, rows) in enumerate(pairs)]
    answers = await asyncio.gather(*map(sight.answer, [*batch, sight.request("No picture.")]))
    assert [one.tokens for one in answers[:-1]] == together


@pytest.mark.asyncio(loop_scope="module")
async def test_choices_share_their_picture(sight: Sight) -> None:
    request = sight.request("What?", (picture(3), (112, 112)), n=2)
    indices = [output.index async for output in sight.subject.engine.generate(request)]
    assert set(indices) == {0, 1}


@pytest.mark.asyncio(loop_scope="module")
async def test_what_is_wrong_with_a_picture_is_refused_and_the_engine_lives(sight: Sight) -> None:
    good = sight.request("What?", (picture(5), (112, 112)))
    [one] = good.media
    before = (await sight.answer(good)).tokens
    wrong = [
        replace(one, data=one.data[:-1]),
        replace(one, data=b""),
        replace(one, media=replace(one.media, offset=one.media.offset + 1)),
        replace(one, media=replace(one.media, length=one.media.length - 1)),
        replace(one, media=replace(one.media, offset=len(good.prompt) + 5)),
        replace(one, media=replace(one.media, shape=(112, 224)), data=picture(5, 112, 224)),
        MediaInput(Media("audio", "silence", (16_000,), one.media.offset, one.media.length), bytes(64_000)),
    ]
    for bad in wrong:
        with pytest.raises(RequestError):
            await sight.answer(replace(sight.request("What?"), prompt=good.prompt, media=[bad]))
        assert (await sight.answer(replace(good, id=sight.request("x").id))).tokens == before


@pytest.mark.asyncio(loop_scope="module")
async def test_an_attention_backend_that_ends_at_a_text_beside_a_picture_is_refused(sight: Sight) -> None:
    """A backend that the engine chose by itself is refused, too."""
    engine: Any = sight.subject.engine
    from sglang.srt.arg_groups.model_override_base import attention_backends_of, resolved_view
    from sglang.srt.server_args import ServerArgs

    from app.engines.sglang.media import check_attention

    args = engine._loaded.engine.tokenizer_manager.server_args
    assert attention_backends_of(resolved_view(args))[0] == "torch_native"
    check_attention("gemma3", args)
    triton = ServerArgs(model_path=args.model_path, device="cpu", attention_backend="triton")
    check_attention("qwen3_vl", triton)
    with pytest.raises(ValueError, match="triton"):
        check_attention("gemma3", triton)
