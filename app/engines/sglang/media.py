"""Pictures in prompts, as SGLang takes them: patches, made here, at the places and under the names that are given.

SGLang would take a picture as it is, too, but makes text of the prompt's tokens then, and tokens of that text again.
"""

import asyncio
import hashlib
import secrets
from collections.abc import Sequence
from importlib.metadata import version
from itertools import cycle, islice
from typing import Any, NamedTuple

import torch
from PIL import Image
from sglang.srt.entrypoints.engine import Engine
from sglang.srt.managers.schedule_batch import Modality, MultimodalDataItem
from transformers import AutoImageProcessor

from app.engines.base import GenerateRequest, MediaInput
from app.engines.media_digest import media_digest
from app.errors import RequestError
from app.messages import MEDIA_NAMES, MediaKind, MediaSign
from app.pools import Pool
from app.tokenizer import load_tokenizer

_MODELS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
_NAME_BYTES = 8  # of a picture's name in SGLang: it has room for no more
_NAMED = 65_536  # pictures that are remembered: beyond that, the first one's blocks count as unknown


class Patches(NamedTuple):
    """Of all pictures of a prompt."""

    patches: torch.Tensor
    grids: torch.Tensor
    places: list[tuple[int, int]]  # in the prompt: offset and length
    names: list[int]


class Pictures:
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
        """What the engine's model needs. Prefill and decode apart are not tried with pictures."""
        manager = engine.tokenizer_manager
        config = manager.model_config.hf_config
        if manager.mm_processor is None or config.model_type not in _MODELS or pool.role != "both":
            return
        # For some models, the one that SGLang has loads with sizes of SGLang's instead of the model's.
        self._processor = AutoImageProcessor.from_pretrained(pool.model_dir)
        self._token, self._merge = int(config.image_token_id), int(config.vision_config.spatial_merge_size)
        self.kinds = ("image",)
        # Templates of texts have the marker, of which this token is replaced.
        around = int(config.vision_start_token_id), self._token, int(config.vision_end_token_id)
        marker = load_tokenizer(pool.model_dir, pool.chat_template, pool.tokenizer_mode).decode(
            [*around], skip_special_tokens=False
        )
        digest = media_digest(f"sglang {version('sglang')}", "", pool.model_dir)
        most = self._processor.size["longest_edge"] // (self._processor.patch_size * self._merge) ** 2
        self.signs = (MediaSign("image", digest, marker, (self._token,), most=most),)

    def expansion(self, shape: Sequence[int]) -> list[int]:
        """What stands for a picture. Raises: RequestError for a shape that the model can't take."""
        try:
            patches = self._processor.get_number_of_image_patches(*shape)
        except ValueError as exc:
            raise RequestError(f"the model can't take it: {exc}") from exc
        return [self._token] * (patches // self._merge**2)

    def check(self, request: GenerateRequest) -> None:
        """Raises: RequestError. What gets past this and `prepared` can't end SGLang's scheduler."""
        for one in request.media:
            media, length = one.media, len(one.data)
            if media.kind not in self.kinds:
                raise RequestError(f"This model's engine takes no {MEDIA_NAMES[media.kind]}.")
            height, width = media.shape
            if length != 3 * height * width:
                raise RequestError(f"A picture of {height} × {width} pixels has {length} bytes.")
            if set(request.prompt[media.offset : media.offset + media.length]) != {self._token}:
                raise RequestError("A picture has no placeholders at its place in the prompt.")

    async def prepared(self, media: Sequence[MediaInput]) -> Patches:
        """For `seen`. Raises: RequestError, ValueError."""
        names = [self._name(one.media.sha256) for one in media]
        made = await asyncio.to_thread(lambda: [self._patches(one) for one in media])
        return Patches(
            torch.cat([patches for patches, _ in made]),
            torch.cat([grid for _, grid in made]),
            [(one.media.offset, one.media.length) for one in media],
            names,
        )

    def _name(self, sha256: str) -> int:
        if sha256 not in self._names:
            digest = hashlib.blake2b(sha256.encode(), key=self._secret, digest_size=_NAME_BYTES).digest()
            self._names[sha256] = int.from_bytes(digest)
            self.stand_ins.update(dict.fromkeys(_stand_ins(self._names[sha256]), (self._token, sha256)))
            if len(self._names) > _NAMED:
                for number in _stand_ins(self._names.pop(next(iter(self._names)))):
                    self.stand_ins.pop(number, None)
        return self._names[sha256]

    def _patches(self, one: MediaInput) -> tuple[torch.Tensor, torch.Tensor]:
        """A picture's, and their grid."""
        height, width = one.media.shape
        made = self._processor(images=[Image.frombytes("RGB", (width, height), one.data)], return_tensors="pt")
        grid = made["image_grid_thw"]
        tokens = int(grid.prod()) // self._merge**2
        if tokens != one.media.length:
            raise RequestError(f"A picture has {tokens} tokens here, and {one.media.length} in the prompt.")
        return made["pixel_values"], grid


def seen(pictures: Patches, prompt: Sequence[int]) -> dict[str, Any]:
    """Arguments of `async_generate`. `prompt`: as SGLang gets it."""
    padded = list(prompt)
    for (offset, length), name in zip(pictures.places, pictures.names, strict=True):
        numbers = _stand_ins(name)
        padded[offset : offset + length] = islice(cycle(numbers), length)
    processed = {
        "format": "processor_output",
        "pixel_values": pictures.patches,
        "image_grid_thw": pictures.grids,
        "offsets": [(offset, offset + length - 1) for offset, length in pictures.places],
        "padded_input_ids": padded,  # else it takes those of names of its own
    }
    return {"image_data": [processed], "mm_hashes": [f"{name:x}" for name in pictures.names]}


def _stand_ins(name: int) -> tuple[int, ...]:
    item = MultimodalDataItem(modality=Modality.IMAGE)
    item.set_hash(name)
    return tuple(item.padding_values())
