"""Pictures on SGLang: the answers are vLLM's, its cache tells pictures apart, and the index knows what it has."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace
from PIL import Image

from app.engines.base import EngineInfo, GenerateRequest, MediaInput
from app.errors import RequestError
from app.kv.blocks import prompt_hashes
from app.media.picture import picture_of
from app.media.placeholders import pictures_of
from app.media.placeholders.places import joined
from app.messages.events import TokenLogprob
from app.messages.job import PartialOutput
from app.messages.media import Media, MediaSign
from app.pools.schema import Pool
from app.runner.engine_factory import create_engine
from app.tokenizing.tokenizer import load_tokenizer
from ops.models.seeing import written
from tests.contract.conftest import loading
from tests.contract.subject import Answer, Subject
from tests.shallow import shallow_model
from tests.vlm import random_vlm

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.media,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]

ARGS: dict[str, dict[str, Any]] = {
    "sglang": {"max_total_tokens": 8192},
    "vllm": {
        "dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 2**27,
        "limit_mm_per_prompt": {"image": 2, "video": 0},
        "env": {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"},
    },
}  # fmt: skip
SIZES = [(112, 112), (60, 200), (300, 117), (400, 400), (31, 29)]


def picture(seed: int, height: int = 112, width: int = 112) -> bytes:
    gradient = Image.linear_gradient("L").resize((width, height))
    return Image.merge("RGB", [gradient, gradient.rotate(90), Image.new("L", (width, height), seed)]).tobytes()


class Sight:
    """Requests with pictures, on one engine."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self._family = pictures_of(random_vlm("qwen2_vl"), subject.tokenizer, {})

    def request(self, text: str, *pictures: tuple[bytes, tuple[int, int]], **sampling: Any) -> GenerateRequest:
        """The pictures come before the text."""
        assert self._family is not None
        prompt, media = self.subject.encode("<|im_start|>user\nLook at this: "), []
        for data, (height, width) in pictures:
            before, _, after = self._family.marker.partition("<|image_pad|>")
            prompt += self.subject.encode(before)
            tokens = self._family.tokens(height, width)
            sha256 = picture_of(height, width, data).sha256
            media.append(MediaInput(Media("image", sha256, (height, width), len(prompt), len(tokens)), data))
            prompt += tokens + self.subject.encode(after)
        prompt += self.subject.encode(text)
        return replace(self.subject.request(prompt, **sampling), media=media)

    async def answer(self, asked: GenerateRequest) -> Answer:
        answer = Answer()
        async for output in self.subject.engine.generate(asked):
            answer.outputs.append(output)
        return answer


async def loaded(name: str) -> AsyncIterator[Sight]:
    path = random_vlm("qwen2_vl")
    pool = Pool.model_validate(
        {"model": "sees", "engine": name, "path": path, "max_running": 4, "max_model_len": 1024, "args": ARGS[name]}
    )
    with loading(name):
        engine = create_engine(pool)
        info = await engine.start()
        yield Sight(Subject(name, engine, info, load_tokenizer(path, None, "file"), set(), 6.0))
        await engine.close()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def sight() -> AsyncIterator[Sight]:
    async for one in loaded("sglang"):
        yield one


@pytest.mark.asyncio(loop_scope="module")
async def test_the_answers_are_vllms(sight: Sight) -> None:
    """Requests have one picture of each size, two, or none; one answer goes on after what another engine said."""

    def questions(asker: Sight) -> list[GenerateRequest]:
        one = [asker.request("What?", (picture(n, *size), size)) for n, size in enumerate(SIZES)]
        two = asker.request("And?", *((picture(9, *size), size) for size in SIZES[1:3]))
        first = asker.request("What?", (picture(1, *SIZES[1]), SIZES[1]))
        return [*one, two, asker.request("No picture."), first]

    ours = [(await sight.answer(question)).tokens for question in questions(sight)]
    theirs: list[list[int]] = []
    async for vllm in loaded("vllm"):
        theirs = [(await vllm.answer(question)).tokens for question in questions(vllm)]
    assert ours == theirs
    assert len({tuple(tokens) for tokens in ours}) == len(ours) - 1, "the last question is the second"
    again = questions(sight)[-1]
    resumed_request = replace(again, begun=[PartialOutput(theirs[-1][:3])])
    assert (await sight.answer(resumed_request)).tokens == theirs[-1][3:]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("model", "around"),
    [("qwen3_vl", ("Look <|vision_start|>", "<|vision_end|> What?")), ("gemma3", ("Look\n", "\n\nWhat?"))],
)
async def test_what_a_models_pictures_become_it_tells_as_vllm_does(
    model: str, around: tuple[str, str], tmp_path: Path
) -> None:
    """The API knows nothing of such a model's files. Both answer alike, also with a picture that is cached."""
    path = written(model, tmp_path, shallow_model(), weights=True)
    tokenizer = load_tokenizer(path, None, "file")
    before, after = (tokenizer.encode(text, add_special_tokens=False) for text in around)
    results: dict[str, list[tuple[MediaSign, list[int], list[TokenLogprob]]]] = {}
    for name, args in (ARGS | {"sglang": ARGS["sglang"] | {"enable_multimodal": True}}).items():
        pool = Pool.model_validate(
            {"model": "sees", "engine": name, "path": path, "max_running": 4, "max_model_len": 1024, "args": args}
        )
        with loading(name):
            engine: Any = create_engine(pool)
            (sign,) = (await engine.start()).signs
            subject = Subject(name, engine, EngineInfo(32, 0, 0, 0), tokenizer, set(), 6.0)
        results[name] = []
        for number, (height, width) in enumerate([*SIZES, SIZES[0]]):
            becomes, data = await engine.expansion("image", (height, width), 0, 1), picture(number % 5, height, width)
            prompt, where = joined([*before, *becomes, *after], sign.joins)
            sha256, offset = picture_of(height, width, data).sha256, where[len(before)]
            media = Media("image", sha256, (height, width), offset, len(becomes))
            request = replace(
                subject.request(prompt, logprobs=1), media=[MediaInput(media, data)],
                written=[*before, *sign.target, *after],
            )  # fmt: skip
            logprobs = [lp async for step in engine.generate(request) for lp in step.logprobs or ()]
            results[name].append((replace(sign, digest="", most=0), becomes, logprobs))
        if model == "qwen3_vl":
            with pytest.raises(RequestError, match="can't take it"):
                await engine.expansion("image", (1, 300), 0, 1)
        await engine.close()
    for ours, theirs in zip(results["sglang"], results["vllm"], strict=True):
        assert ours[:2] == theirs[:2]
        assert [lp.token_id for lp in ours[2]] == [lp.token_id for lp in theirs[2]]
        assert [lp.logprob for lp in ours[2]] == pytest.approx([lp.logprob for lp in theirs[2]], abs=1e-3)
    firsts = [logprobs[0].logprob for _, _, logprobs in results["vllm"]]
    assert firsts[0] == pytest.approx(firsts[-1], abs=1e-6)
    assert len({round(logprob, 5) for logprob in firsts}) == len(SIZES)


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
