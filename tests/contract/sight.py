"""Requests with pictures or a video, on one engine of those that see."""

from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from PIL import Image

from app.engines.base import GenerateRequest, MediaInput
from app.media.picture import picture_of
from app.media.placeholders import pictures_of
from app.messages.media import Media, MediaSign
from app.pools.schema import Pool
from app.runner.engine_factory import create_engine
from app.tokenizing.tokenizer import load_tokenizer
from tests.contract.conftest import loading
from tests.contract.subject import Answer, Subject
from tests.vlm import random_vlm

ARGS: dict[str, dict[str, Any]] = {
    "sglang": {"max_total_tokens": 8192},
    "vllm": {
        "dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 2**27,
        "limit_mm_per_prompt": {"image": 2, "video": 1},
        "env": {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"},
    },
}  # fmt: skip
SIZES = [(112, 112), (60, 200), (300, 117), (400, 400), (31, 29)]
FILMS = [(4, 112, 140, 20), (3, 60, 60, 7)]  # frames, height, width, tenths of a second


def picture(seed: int, height: int = 112, width: int = 112) -> bytes:
    gradient = Image.linear_gradient("L").resize((width, height))
    return Image.merge("RGB", [gradient, gradient.rotate(90), Image.new("L", (width, height), seed)]).tobytes()


def film(seed: int, frames: int, height: int, width: int, _tenths: int) -> bytes:
    return b"".join(picture(seed + 40 * frame, height, width) for frame in range(frames))


def placed(marker: list[int], sign: MediaSign) -> tuple[list[int], int]:
    """A medium's marker, and where its target is in it."""
    length = len(sign.target)
    return marker, next(at for at in range(len(marker)) if marker[at : at + length] == [*sign.target])


class Sight:
    """Requests with pictures or a video, on one engine."""

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
            name = picture_of(height, width, data).sha256
            media.append(MediaInput(Media("image", name, (height, width), len(prompt), len(tokens)), data))
            prompt += tokens + self.subject.encode(after)
        prompt += self.subject.encode(text)
        return replace(self.subject.request(prompt, **sampling), media=media)

    async def watching(self, text: str, data: bytes, shape: tuple[int, ...], **sampling: Any) -> GenerateRequest:
        """The video comes before the text."""
        engine: Any = self.subject.engine
        (sign,) = (sign for sign in self.subject.info.signs if sign.kind == "video")
        (marker, at), behind = placed(self.subject.encode(sign.marker), sign), self.subject.encode(text)
        rest, becomes = marker[at + len(sign.target) :], await engine.expansion("video", shape, 0, 1)
        media = MediaInput(Media("video", sha256(data).hexdigest(), shape, at, len(becomes)), data)
        request = self.subject.request([*marker[:at], *becomes, *rest, *behind], **sampling)
        return replace(request, media=[media], written=[*marker, *behind])

    async def answer(self, asked: GenerateRequest) -> Answer:
        answer = Answer()
        async for output in self.subject.engine.generate(asked):
            answer.outputs.append(output)
        return answer


def pool_of(name: str, path: Path, **more: Any) -> Pool:
    own = {"model": "sees", "engine": name, "path": path, "max_running": 4, "max_model_len": 1024, "args": ARGS[name]}
    return Pool.model_validate(own | more)


async def loaded(name: str) -> AsyncIterator[Sight]:
    path = random_vlm("qwen2_vl")
    with loading(name):
        engine = create_engine(pool_of(name, path, embeddings=name == "sglang"))
        info = await engine.start()
        yield Sight(Subject(name, engine, info, load_tokenizer(path, None, "file"), set(), 6.0))
        await engine.close()
