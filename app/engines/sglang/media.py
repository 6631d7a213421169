"""Pictures and videos in prompts, as SGLang takes them: tensors, at the places and under the names that are given.

SGLang would take a picture as it is, too, but makes text of the prompt's tokens then, and tokens of that text again.
"""

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from itertools import cycle, islice
from math import prod
from typing import Any, NamedTuple

import torch
from sglang.srt.arg_groups.model_override_base import attention_backends_of, resolved_view
from sglang.srt.entrypoints.engine import Engine
from sglang.srt.managers.schedule_batch import Modality, MultimodalDataItem, MultimodalProcessorOutput

from app.engines.base import Embedding, EmbeddingShape, GenerateRequest, MediaInput
from app.engines.media_digest import media_digest
from app.engines.sglang.families import FAMILIES, Family, Features, Run, runs
from app.errors import RequestError
from app.messages.media import MEDIA_NAMES, Media, MediaKind, MediaSign
from app.pools.schema import Pool

_NAME_BYTES = 8  # of a picture's name in SGLang: it has room for no more
_NAMED = 65_536  # pictures that are remembered: beyond that, the first one's blocks count as unknown
_MODALITIES = {"image": Modality.IMAGE, "video": Modality.VIDEO}


Arguments = Callable[[Sequence[int]], dict[str, Any]]  # of `GenerateReqInput`, for a prompt as SGLang gets it


class Prepared(NamedTuple):
    """A medium of a prompt."""

    kind: MediaKind
    places: list[Run]  # of its rows in the prompt
    name: int
    features: Features
    rows: torch.Tensor | None  # what another worker's encoder has made of it


def check_attention(model_type: str, args: Any) -> None:
    """Raises: ValueError where SGLang ends at a batch of texts and pictures."""
    prefill, _decode = attention_backends_of(resolved_view(args))
    if model_type == "gemma3" and prefill == "triton":
        raise ValueError("its attention_backend is triton, with which SGLang ends at a text beside a picture")


class SglangMedia:
    """The pictures and videos of one SGLang, and what stands for them in its KV events.

    For a placeholder's token, its cache has one of four numbers that are made of the medium's name. A name is made
    with a secret: nobody can make two of one name, which SGLang would take for each other.
    """

    def __init__(self) -> None:
        self.signs: tuple[MediaSign, ...] = ()  # of the kinds that the loaded model takes
        self.embeddings: EmbeddingShape | None = None  # of encoded pictures that it takes
        # By those numbers, the placeholder's token and the medium's SHA-256. For `KvEventSource.pictures`.
        self.stand_ins: dict[int, tuple[int, str]] = {}
        self._secret = secrets.token_bytes(16)
        self._names: dict[str, int] = {}

    @property
    def kinds(self) -> tuple[MediaKind, ...]:
        """The kinds that it takes, but for videos: these are told by their sign alone."""
        return tuple(sign.kind for sign in self.signs if sign.kind != "video")

    def load(self, engine: Engine, pool: Pool) -> None:
        """Loads what the engine's model needs. Raises: ValueError, OSError."""
        manager = engine.tokenizer_manager
        config = manager.model_config.hf_config
        if manager.mm_processor is None or config.model_type not in FAMILIES:
            return
        check_attention(config.model_type, manager.server_args)
        self._family: Family = FAMILIES[config.model_type](config, pool, manager.mm_processor)
        self.signs = self._family.signs(pool, media_digest(f"sglang {version('sglang')}", "", pool.model_dir))
        _pass_prepared(manager.mm_processor)
        if pool.embeddings and pool.role != "decode":  # which gets the prompt's KV
            dtype = str(manager.model_config.dtype)[len("torch.") :]
            self.embeddings = EmbeddingShape(row_width(manager.model_config), dtype, self._family.token["image"])

    def expansion(self, kind: MediaKind, shape: Sequence[int]) -> list[int]:
        """Tokens that stand for a medium. Blocks. Raises: RequestError for a shape that the model can't take."""
        try:
            return self._family.tokens(kind, shape)
        except ValueError as exc:
            raise RequestError(f"the model can't take it: {exc}") from exc

    def check(self, request: GenerateRequest) -> None:
        """Raises: RequestError. What gets past this and `prepared` can't end SGLang's scheduler."""
        for one in request.media:
            media, length = one.media, len(one.data)
            if media.kind not in {sign.kind for sign in self.signs}:
                raise RequestError(f"This model's engine takes no {MEDIA_NAMES[media.kind]}.")
            size = 3 * prod(media.shape[:3])
            if length != size:
                raise RequestError(f"{MEDIA_NAMES[media.kind].capitalize()} of {media.shape} have {size} bytes.")

    def _check_places(self, media: Media, prompt: Sequence[int]) -> None:
        """Raises: RequestError."""
        places = runs(self.expansion(media.kind, media.shape), self._family.token[media.kind])
        if _from_first(self._places(media, prompt)) != _from_first(places):
            rows = sum(last - first + 1 for first, last in places)
            raise RequestError(f"It has {rows} placeholders here, and others at its place in the prompt.")

    async def prepared(self, media: Sequence[MediaInput], prompt: Sequence[int]) -> Arguments:
        """Arguments of a prompt with these media. Raises: RequestError, ValueError."""
        return partial(self._seen, await asyncio.to_thread(self._items, media, prompt))

    def _items(self, media: Sequence[MediaInput], prompt: Sequence[int]) -> list[Prepared]:
        for one in media:
            self._check_places(one.media, prompt)
        every = all(one.embedding is not None for one in media)  # SGLang takes the rows of all, or of none
        return [
            Prepared(
                one.media.kind,
                self._places(one.media, prompt),
                self._name(one.media),
                self._family.features(one),
                _rows(one.embedding) if every and one.embedding is not None else None,
            )
            for one in media
        ]

    def _seen(self, media: Sequence[Prepared], prompt: Sequence[int]) -> dict[str, Any]:
        padded_ids, items = list(prompt), list[MultimodalDataItem]()
        for one in media:
            item = MultimodalDataItem(
                modality=_MODALITIES[one.kind],
                offsets=one.places,
                feature=one.features.feature if one.rows is None else None,
                precomputed_embeddings=one.rows,
                model_specific_data=dict(one.features.data),
            )
            item.set_hash(one.name)
            items.append(item)
            for first, last in one.places:
                padded_ids[first : last + 1] = islice(cycle(item.padding_values()), last + 1 - first)
        positions, ahead = self._family.positions(prompt, items)
        output = MultimodalProcessorOutput(
            mm_items=items,
            input_ids=list(prompt),
            padded_input_ids=padded_ids,
            im_token_id=self._family.token.get("image"),
            video_token_id=self._family.token.get("video"),
            mrope_positions=positions,
            mrope_position_delta=ahead,
        )
        return {"image_data": [output]}

    def _places(self, media: Media, prompt: Sequence[int]) -> list[Run]:
        """The runs, in the prompt, of what stands for a medium's rows."""
        stretch = prompt[media.offset : media.offset + media.length]
        token = self._family.token[media.kind]
        return [(media.offset + first, media.offset + last) for first, last in runs(stretch, token)]

    def _name(self, media: Media) -> int:
        sha256 = media.sha256
        if sha256 not in self._names:
            digest = hashlib.blake2b(sha256.encode(), key=self._secret, digest_size=_NAME_BYTES).digest()
            self._names[sha256] = int.from_bytes(digest)
            token = self._family.token[media.kind]
            self.stand_ins.update(dict.fromkeys(_stand_ins(self._names[sha256]), (token, sha256)))
            if len(self._names) > _NAMED:
                for number in _stand_ins(self._names.pop(next(iter(self._names)))):
                    self.stand_ins.pop(number, None)
        return self._names[sha256]


def row_width(model: Any) -> int:
    """Numbers in a row of an encoded picture. `model`: SGLang's ModelConfig."""
    levels = getattr(getattr(model.hf_config, "vision_config", None), "deepstack_visual_indexes", None) or ()
    return int(model.hidden_size) * (1 + len(levels))


def _pass_prepared(processor: Any) -> None:
    """Lets SGLang's processor pass what `_seen` has made: it would take no rows of several pictures at once."""
    own = processor.process_mm_data_async

    async def process(image_data: Any = None, **more: Any) -> Any:
        if image_data and isinstance(image_data[0], MultimodalProcessorOutput):
            return image_data[0]
        return await own(image_data=image_data, **more)

    processor.process_mm_data_async = process


def _from_first(places: Sequence[Run]) -> list[Run]:
    return [(first - places[0][0], last - places[0][0]) for first, last in places]


def _rows(embedding: Embedding) -> torch.Tensor:
    numbers = torch.frombuffer(bytearray(embedding.data), dtype=getattr(torch, embedding.dtype))
    return numbers.reshape(embedding.rows, embedding.width)


def _stand_ins(name: int) -> tuple[int, ...]:
    item = MultimodalDataItem(modality=Modality.IMAGE)
    item.set_hash(name)
    return tuple(item.padding_values())
