"""Families of models that see: how each writes pictures and videos in a prompt, and the tensors that it sees."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby, product
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from PIL import Image
from sglang.srt.layers.rotary_embedding import MRotaryEmbedding
from sglang.srt.managers.io_struct import GenerateReqInput
from sglang.srt.managers.schedule_batch import Modality, MultimodalDataItem
from transformers import AutoImageProcessor, AutoProcessor
from transformers.video_utils import VideoMetadata

from app.engines.base import MediaInput
from app.engines.video_colours import complete_torchvision
from app.messages.media import TENTHS, MediaKind, MediaSign
from app.pools.schema import Pool
from app.tokenizing.tokenizer import Tokenizer, load_tokenizer

Run = tuple[int, int]  # the first and the last of tokens that stand for rows
_KEPT = 256  # shapes of which it is known what they become
_USUAL = (224, 224)
_LARGE = ((4096, 4096), (1024, 4096), (4096, 1024))


class Features(NamedTuple):
    """A medium as the model sees it."""

    feature: torch.Tensor
    data: dict[str, Any]  # by SGLang's names


class Family(Protocol):
    """Models that write and see media alike."""

    token: Mapping[MediaKind, int]  # of which each stands for a row of a medium

    def signs(self, pool: Pool, digest: str) -> tuple[MediaSign, ...]: ...

    def tokens(self, kind: MediaKind, shape: Sequence[int]) -> list[int]:
        """Tokens that stand for a medium. Raises: ValueError for a shape that the model can't take."""

    def features(self, one: MediaInput) -> Features: ...

    def positions(self, prompt: Sequence[int], items: Sequence[MultimodalDataItem]) -> tuple[Any, Any]:
        """Positions of the prompt's tokens and what an answer's are ahead of them; twice None: they are counted."""


def runs(tokens: Sequence[int], token: int) -> list[Run]:
    """The runs of one token."""
    ends: list[Run] = []
    for is_row, group in groupby(range(len(tokens)), key=lambda place: tokens[place] == token):
        if is_row:
            places = [*group]
            ends.append((places[0], places[-1]))
    return ends


class Qwen:
    """Qwen2-VL and those after it: a row for so many patches."""

    def __init__(self, config: Any, pool: Pool, _processor: Any) -> None:
        self._config = config
        # For some models, the one that SGLang has loads with sizes of SGLang's instead of the model's.
        self._pictures = AutoImageProcessor.from_pretrained(pool.model_dir)
        self._processor = AutoProcessor.from_pretrained(pool.model_dir)
        complete_torchvision()
        self._merge = int(config.vision_config.spatial_merge_size)
        self.token: Mapping[MediaKind, int] = {"image": int(config.image_token_id), "video": int(config.video_token_id)}
        self._begin, self._end = int(config.vision_start_token_id), int(config.vision_end_token_id)
        self._times = config.model_type.startswith("qwen3")  # are written before each frame
        self._known = lru_cache(_KEPT)(self._video_tokens)

    def signs(self, pool: Pool, digest: str) -> tuple[MediaSign, ...]:
        most = self._pictures.size["longest_edge"] // (self._pictures.patch_size * self._merge) ** 2
        image, video = (self._around(self.token[kind]) for kind in ("image", "video"))
        target = video if self._times else video[1:2]
        decode = _tokenizer(pool).decode
        return (
            MediaSign("image", digest, decode([*image], skip_special_tokens=False), image[1:2], most=most),
            MediaSign("video", digest, decode([*video], skip_special_tokens=False), target, most=most * 8),
        )

    def tokens(self, kind: MediaKind, shape: Sequence[int]) -> list[int]:
        if kind == "video":
            return [*self._known(tuple(shape))]
        patches = self._pictures.get_number_of_image_patches(*shape)
        return [self.token["image"]] * (patches // self._merge**2)

    def features(self, one: MediaInput) -> Features:
        if one.media.kind == "video":
            tensors = self._seen(one.media.shape, np.frombuffer(one.data, np.uint8))
            names = ("video_grid_thw", "second_per_grid_ts")
            return Features(tensors["pixel_values_videos"], {name: tensors[name] for name in names if name in tensors})
        tensors = self._pictures(images=[picture(one)], return_tensors="pt")
        return Features(tensors["pixel_values"], {"image_grid_thw": tensors["image_grid_thw"]})

    def positions(self, prompt: Sequence[int], items: Sequence[MultimodalDataItem]) -> tuple[Any, Any]:
        positions, ahead = MRotaryEmbedding.get_rope_index(
            spatial_merge_size=self._merge,
            image_token_id=self.token["image"],
            video_token_id=self.token["video"],
            vision_start_token_id=self._begin,
            model_type=self._config.model_type,
            tokens_per_second=getattr(self._config.vision_config, "tokens_per_second", None),
            input_ids=torch.tensor([prompt]),
            image_grid_thw=_joined(items, "image_grid_thw"),
            video_grid_thw=_joined(items, "video_grid_thw"),
            second_per_grid_ts=_joined(items, "second_per_grid_ts"),
        )
        return positions.squeeze(1), ahead

    def _around(self, token: int) -> tuple[int, int, int]:
        """Templates of texts have the marker, of which this token is replaced, or all."""
        return self._begin, token, self._end

    def _video_tokens(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        ids = self._seen(shape, np.zeros((*shape[:3], 3), np.uint8))["input_ids"][0].tolist()
        return tuple(ids if self._times else ids[1:-1])

    def _seen(self, shape: Sequence[int], frames: Any) -> Any:
        """The processor's tensors of a video, which it is told not to choose frames of."""
        number, height, width, tenths = shape
        long_s = tenths / TENTHS
        metadata = VideoMetadata(
            total_num_frames=number,
            fps=number / long_s,
            duration=long_s,
            frames_indices=[*range(number)],
            width=width,
            height=height,
        )
        marker = self._processor.tokenizer.decode(self._around(self.token["video"]))
        how = {"video_metadata": [metadata], "do_sample_frames": False, "return_tensors": "pt"}
        return self._processor(text=[marker], videos=[frames.reshape(number, height, width, 3)], **how)


class Gemma:
    """Gemma 3: as many rows for each picture, with marks and lines around them."""

    def __init__(self, config: Any, pool: Pool, _processor: Any) -> None:
        """Raises: ValueError where pictures are cut into crops."""
        processor = AutoProcessor.from_pretrained(pool.model_dir)
        self._processor = processor.image_processor
        if self._processor.do_pan_and_scan:
            raise ValueError("do_pan_and_scan is on: what crops become is not known here")
        self.token: Mapping[MediaKind, int] = {"image": int(config.image_token_index)}
        self._begin = int(config.boi_token_index)
        self._tokens = _tokenizer(pool).encode(processor.full_image_sequence, add_special_tokens=False)

    def signs(self, pool: Pool, digest: str) -> tuple[MediaSign, ...]:
        tokenizer = _tokenizer(pool)
        marker = tokenizer.decode([self._begin], skip_special_tokens=False)
        joins = self._joins(tokenizer)
        return (MediaSign("image", digest, marker, (self._begin,), joins, most=len(self._tokens)),)

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

    def tokens(self, _kind: MediaKind, _shape: Sequence[int]) -> list[int]:
        return self._tokens

    def features(self, one: MediaInput) -> Features:
        return Features(self._processor(images=[picture(one)], return_tensors="pt")["pixel_values"], {})

    def positions(self, _prompt: Sequence[int], _items: Sequence[MultimodalDataItem]) -> tuple[Any, Any]:
        return None, None


class Asked:
    """A family that SGLang's own processor knows: it is asked, with a picture between two letters."""

    def __init__(self, config: Any, pool: Pool, processor: Any) -> None:
        """Raises: ValueError where a picture is not one run, or some, of one token."""
        processor = getattr(processor, "inner", processor)
        self._processor, self._process = processor, processor.process_mm_data_async
        self.token: Mapping[MediaKind, int] = {"image": int(processor.mm_tokens.image_token_id)}
        self._sign = processor.mm_tokens.image_token
        ends = (getattr(processor, f"IMAGE_{end}_TOKEN", "") for end in ("START", "END"))
        self._marker = self._sign.join(ends)  # models whose positions begin behind a mark want it
        self._letter = _tokenizer(pool).encode("a", add_special_tokens=False)
        self._known = lru_cache(_KEPT)(self._tokens)
        self.tokens("image", _USUAL)

    def signs(self, pool: Pool, digest: str) -> tuple[MediaSign, ...]:
        target = _tokenizer(pool).encode(self._sign, add_special_tokens=False)
        most = max(len(self.tokens("image", shape)) for shape in _LARGE)
        return (MediaSign("image", digest, self._marker, tuple(target), most=most),)

    def tokens(self, _kind: MediaKind, shape: Sequence[int]) -> list[int]:
        return [*self._known(tuple(shape))]

    def features(self, one: MediaInput) -> Features:
        (item,) = self._made(picture(one)).mm_items
        return Features(item.feature, item.model_specific_data)

    def positions(self, prompt: Sequence[int], items: Sequence[MultimodalDataItem]) -> tuple[Any, Any]:
        names = {name for item in items for name in item.model_specific_data if name.endswith("_grid_thw")}
        grids = {name: _joined(items, name) for name in names}  # some processors look at one item only
        one = MultimodalDataItem(modality=Modality.IMAGE, model_specific_data=grids)
        positions, ahead = self._processor.compute_mrope_positions(list(prompt), [one])
        return positions, ahead

    def _tokens(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        height, width = shape
        output = self._made(Image.new("RGB", (width, height)))
        begin = output.input_ids.index(self._letter[0]) + len(self._letter)
        tokens = output.input_ids[begin : len(output.input_ids) - len(self._letter)]
        places = [(first - begin, last - begin) for item in output.mm_items for first, last in item.offsets]
        if len(output.mm_items) != 1 or places != runs(tokens, self.token["image"]):
            raise ValueError("a picture is more than one item, or has rows of several tokens")
        return tuple(tokens)

    def _made(self, image: Image.Image) -> Any:
        request = GenerateReqInput(text=f"a{self._sign}a", image_data=[image])
        how = {"audio_data": None, "request_obj": request, "max_req_input_len": None}
        return asyncio.run(self._process(image_data=[image], input_text=request.text, **how))


FAMILIES: Mapping[str, Callable[[Any, Pool, Any], Family]] = {
    "qwen2_vl": Qwen,
    "qwen2_5_vl": Qwen,
    "qwen3_vl": Qwen,
    "gemma3": Gemma,
    "llava": Asked,  # with Pixtral's eyes: SGLang does not start with CLIP's
    "mistral3": Asked,
    "glm4v": Asked,
}


def picture(one: MediaInput) -> Image.Image:
    height, width = one.media.shape
    return Image.frombytes("RGB", (width, height), one.data)


def _joined(items: Sequence[MultimodalDataItem], name: str) -> Any:
    """Joins a field of the items that have it."""
    parts = [torch.as_tensor(one.model_specific_data[name]) for one in items if name in one.model_specific_data]
    return torch.cat(parts) if parts else None


def _tokenizer(pool: Pool) -> Tokenizer:
    return load_tokenizer(pool.model_dir, pool.chat_template, pool.tokenizer_mode)
