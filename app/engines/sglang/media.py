"""Pictures in prompts, as SGLang takes them: tensors, made here, at the places and under the names that are given.

SGLang would take a picture as it is, too, but makes text of the prompt's tokens then, and tokens of that text again.
"""

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from itertools import cycle, islice, product
from typing import Any, NamedTuple, Protocol

import torch
from PIL import Image
from sglang.srt.arg_groups.model_override_base import attention_backends_of, resolved_view
from sglang.srt.entrypoints.engine import Engine
from sglang.srt.managers.schedule_batch import Modality, MultimodalDataItem
from transformers import AutoImageProcessor

from app.engines.base import GenerateRequest, MediaInput
from app.engines.media_digest import media_digest
from app.errors import RequestError
from app.messages.media import MEDIA_NAMES, Media, MediaKind, MediaSign
from app.pools.schema import Pool
from app.tokenizing.tokenizer import Tokenizer, load_tokenizer

_NAME_BYTES = 8  # of a picture's name in SGLang: it has room for no more
_NAMED = 65_536  # pictures that are remembered: beyond that, the first one's blocks count as unknown


class Prepared(NamedTuple):
    """All pictures of a prompt."""

    features: dict[str, torch.Tensor]  # by SGLang's names
    places: list[tuple[int, int]]  # in the prompt: offset and length
    names: list[int]


class Family(Protocol):
    """Models that write and see pictures alike."""

    token: int  # of which a run stands for the rows of a picture

    def sign(self, pool: Pool, digest: str) -> MediaSign: ...

    def tokens(self, height: int, width: int) -> list[int]:
        """Tokens that stand for a picture. Raises: ValueError for a shape that the model can't take."""

    def features(self, picture: Image.Image) -> dict[str, torch.Tensor]: ...


class _Qwen:
    """Qwen2-VL and those after it: a row for so many patches."""

    def __init__(self, config: Any, pool: Pool, _processor: Any) -> None:
        # For some models, the one that SGLang has loads with sizes of SGLang's instead of the model's.
        self._processor = AutoImageProcessor.from_pretrained(pool.model_dir)
        self.token, self._merge = int(config.image_token_id), int(config.vision_config.spatial_merge_size)
        # Templates of texts have the marker, of which this token is replaced.
        self._around = int(config.vision_start_token_id), self.token, int(config.vision_end_token_id)

    def sign(self, pool: Pool, digest: str) -> MediaSign:
        marker = _tokenizer(pool).decode([*self._around], skip_special_tokens=False)
        most = self._processor.size["longest_edge"] // (self._processor.patch_size * self._merge) ** 2
        return MediaSign("image", digest, marker, (self.token,), most=most)

    def tokens(self, height: int, width: int) -> list[int]:
        patches = self._processor.get_number_of_image_patches(height, width)
        return [self.token] * (patches // self._merge**2)

    def features(self, picture: Image.Image) -> dict[str, torch.Tensor]:
        tensors = self._processor(images=[picture], return_tensors="pt")
        return {name: tensors[name] for name in ("pixel_values", "image_grid_thw")}


class _Gemma:
    """Gemma 3: as many rows for each picture, with marks and lines around them."""

    def __init__(self, config: Any, pool: Pool, processor: Any) -> None:
        """Raises: ValueError where pictures are cut into crops."""
        self._processor = processor.image_processor
        if self._processor.do_pan_and_scan:
            raise ValueError("do_pan_and_scan is on: what crops become is not known here")
        self.token, self._begin = int(config.image_token_index), int(config.boi_token_index)
        self._tokens = _tokenizer(pool).encode(processor.full_image_sequence, add_special_tokens=False)

    def sign(self, pool: Pool, digest: str) -> MediaSign:
        tokenizer = _tokenizer(pool)
        marker = tokenizer.decode([self._begin], skip_special_tokens=False)
        return MediaSign("image", digest, marker, (self._begin,), self._joins(tokenizer), most=len(self._tokens))

    def _joins(self, tokenizer: Tokenizer) -> tuple[tuple[int, int, int], ...]:
        """Pairs of tokens that the tokenizer writes as one, where a picture's own lines meet those of the text."""
        own = {self._tokens[0], self._tokens[-1]}
        ids = dict.fromkeys([*tokenizer.encode("\n", add_special_tokens=False), *sorted(own)])
        lines = {line: tokenizer.decode([line], skip_special_tokens=False) for line in ids}
        joins: list[tuple[int, int, int]] = []
        for first, second in product(lines, repeat=2):
            both = tokenizer.encode(lines[first] + lines[second], add_special_tokens=False)
            if own & {first, second} and len(both) == 1:
                joins.append((first, second, both[0]))
        return tuple(joins)

    def tokens(self, height: int, width: int) -> list[int]:
        return self._tokens

    def features(self, picture: Image.Image) -> dict[str, torch.Tensor]:
        return {"pixel_values": self._processor(images=[picture], return_tensors="pt")["pixel_values"]}


_FAMILIES: Mapping[str, Callable[[Any, Pool, Any], Family]] = {
    "qwen2_vl": _Qwen,
    "qwen2_5_vl": _Qwen,
    "qwen3_vl": _Qwen,
    "gemma3": _Gemma,
}


def check_attention(model_type: str, args: Any) -> None:
    """Raises: ValueError where SGLang ends at a batch of texts and pictures."""
    prefill, _decode = attention_backends_of(resolved_view(args))
    if model_type == "gemma3" and prefill == "triton":
        raise ValueError("its attention_backend is triton, with which SGLang ends at a text beside a picture")


class SglangPictures:
    """The pictures of one SGLang, and what stands for them in its KV events.

    For a placeholder's token, its cache has one of four numbers that are made of the picture's name. A name is made
    with a secret: nobody can make two pictures of one name, which SGLang would take for each other.
    """

    def __init__(self) -> None:
        self.kinds: tuple[MediaKind, ...] = ()  # that the loaded model takes
        self.signs: tuple[MediaSign, ...] = ()  # of them
        # By those numbers, the placeholder's token and the picture's SHA-256. For `KvEventSource.pictures`.
        self.stand_ins: dict[int, tuple[int, str]] = {}
        self._secret = secrets.token_bytes(16)
        self._names: dict[str, int] = {}

    def load(self, engine: Engine, pool: Pool) -> None:
        """Loads what the engine's model needs. Prefill and decode apart are not tried with pictures.

        Raises: ValueError, OSError.
        """
        manager = engine.tokenizer_manager
        config = manager.model_config.hf_config
        if manager.mm_processor is None or config.model_type not in _FAMILIES or pool.role != "both":
            return
        check_attention(config.model_type, manager.server_args)
        self._family = _FAMILIES[config.model_type](config, pool, manager.mm_processor._processor)  # noqa: SLF001 (its own)
        self.kinds = ("image",)
        self.signs = (self._family.sign(pool, media_digest(f"sglang {version('sglang')}", "", pool.model_dir)),)

    def expansion(self, shape: Sequence[int]) -> list[int]:
        """Tokens that stand for a picture. Raises: RequestError for a shape that the model can't take."""
        height, width = shape
        try:
            return self._family.tokens(height, width)
        except ValueError as exc:
            raise RequestError(f"the model can't take it: {exc}") from exc

    def check(self, request: GenerateRequest) -> None:
        """Raises: RequestError. What gets past this and `prepared` can't end SGLang's scheduler."""
        for one in request.media:
            media, length = one.media, len(one.data)
            if media.kind not in self.kinds:
                raise RequestError(f"This model's engine takes no {MEDIA_NAMES[media.kind]}.")
            height, width = media.shape
            if length != 3 * height * width:
                raise RequestError(f"A picture of {height} × {width} pixels has {length} bytes.")
            begin, count = self._rows(media, request.prompt)
            rows = self.expansion(media.shape).count(self._family.token)
            if count != rows or {*request.prompt[begin : begin + count]} != {self._family.token}:
                raise RequestError(f"A picture has {rows} placeholders here, and others at its place in the prompt.")

    async def prepared(self, media: Sequence[MediaInput], prompt: Sequence[int]) -> Prepared:
        """Pictures of a prompt, as `seen` takes them. Raises: RequestError, ValueError."""
        names = [self._name(one.media.sha256) for one in media]
        feature_sets = await asyncio.to_thread(lambda: [self._family.features(_picture(one)) for one in media])
        features = {name: torch.cat([one[name] for one in feature_sets]) for name in feature_sets[0]}
        return Prepared(features, [self._rows(one.media, prompt) for one in media], names)

    def _rows(self, media: Media, prompt: Sequence[int]) -> tuple[int, int]:
        """The place in the prompt of what stands for a picture's rows: from the first of them to the last."""
        places = [
            place
            for place in range(media.offset, min(len(prompt), media.offset + media.length))
            if prompt[place] == self._family.token
        ]
        return (places[0], places[-1] - places[0] + 1) if places else (media.offset, 0)

    def _name(self, sha256: str) -> int:
        if sha256 not in self._names:
            digest = hashlib.blake2b(sha256.encode(), key=self._secret, digest_size=_NAME_BYTES).digest()
            self._names[sha256] = int.from_bytes(digest)
            self.stand_ins.update(dict.fromkeys(_stand_ins(self._names[sha256]), (self._family.token, sha256)))
            if len(self._names) > _NAMED:
                for number in _stand_ins(self._names.pop(next(iter(self._names)))):
                    self.stand_ins.pop(number, None)
        return self._names[sha256]


def seen(pictures: Prepared, prompt: Sequence[int]) -> dict[str, Any]:
    """Arguments of `GenerateReqInput`. `prompt`: as SGLang gets it."""
    padded_ids = list(prompt)
    for (offset, length), name in zip(pictures.places, pictures.names, strict=True):
        numbers = _stand_ins(name)
        padded_ids[offset : offset + length] = islice(cycle(numbers), length)
    item = {
        **pictures.features,
        "format": "processor_output",
        "offsets": [(offset, offset + length - 1) for offset, length in pictures.places],
        "padded_input_ids": padded_ids,  # else it takes those of names of its own
    }
    return {"image_data": [item], "mm_hashes": [f"{name:x}" for name in pictures.names]}


def _stand_ins(name: int) -> tuple[int, ...]:
    item = MultimodalDataItem(modality=Modality.IMAGE)
    item.set_hash(name)
    return tuple(item.padding_values())


def _picture(one: MediaInput) -> Image.Image:
    height, width = one.media.shape
    return Image.frombytes("RGB", (width, height), one.data)


def _tokenizer(pool: Pool) -> Tokenizer:
    return load_tokenizer(pool.model_dir, pool.chat_template, pool.tokenizer_mode)
