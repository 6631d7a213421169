"""The double's pictures: it expands them as the model's family does, and encodes them as the mock does."""

import asyncio
from pathlib import Path
from typing import Any

from PIL import Image
from xxhash import xxh3_64_digest

from app.engines.base import Embedding, MediaInput
from app.media.picture import picture_of
from app.media.placeholders import pictures_of
from app.messages.media import Media
from app.tokenizing.tokenizer import load_tokenizer
from tests.trtllm.generated import Package

_KEYS = {"prompt", "prompt_token_ids", "multi_modal_data", "multi_modal_uuids", "multi_modal_embeddings"}
_ANY = (1, 1)
WIDTH = 64  # of rows, float32


class Expander:
    """An expander of prompts for one model's folder."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = load_tokenizer(folder)
        self._family = pictures_of(folder, self._tokenizer, {})

    def expand(self, asked: dict[str, Any]) -> tuple[list[int], list[MediaInput]]:
        """A prompt's tokens, and its pictures. Raises: ValueError."""
        if self._family is None or set(asked) - {*_KEYS, "mm_processor_kwargs"}:
            raise ValueError(f"no model that takes {sorted(asked)}")
        embeddings = (asked.get("multi_modal_embeddings") or {}).get("image")
        if embeddings is not None:
            short = self._tokenizer.encode(asked["prompt"], add_special_tokens=False)
            pictures = [_encoded(one) for one in embeddings]
        else:
            short = asked["prompt_token_ids"]
            pictures = [_seen(one) for one in asked["multi_modal_data"]["image"]]
            assert len(asked["multi_modal_uuids"]["image"]) == len(pictures)
        rest, tokens, media = iter(pictures), list[int](), list[MediaInput]()
        for token in short:
            if token != self._family.token_id:
                tokens.append(token)
                continue
            shape, data, embedding = next(rest)
            stands = [token] * embedding.rows if embedding else self._family.tokens(*shape)
            name = xxh3_64_digest(data).hex() if embedding is None else embedding.data[:8].hex()
            one = Media("image", name, _ANY, len(tokens), len(stands))  # an encoded one tells no shape
            media.append(MediaInput(one, data, embedding))
            tokens += stands
        if next(rest, None) is not None:
            raise ValueError("more pictures than places")
        return tokens, media

    def encoded(self, picture: Image.Image) -> Any:
        """A tensor of rows × width."""
        import torch

        assert self._family is not None
        rows = len(self._family.tokens(picture.height, picture.width))
        digest = xxh3_64_digest(picture.tobytes())
        numbers = torch.frombuffer(bytearray(digest * (rows * WIDTH // 2)), dtype=torch.float32)
        return numbers.reshape(1, rows, WIDTH)


def _seen(picture: Image.Image) -> tuple[tuple[int, int], bytes, Embedding | None]:
    assert picture_of(picture.height, picture.width, picture.tobytes())
    return (picture.height, picture.width), picture.tobytes(), None


def _encoded(made: Any) -> tuple[tuple[int, int], bytes, Embedding | None]:
    import torch

    rows, width = made.shape
    data = made.contiguous().view(torch.uint8).numpy().tobytes()
    return _ANY, b"", Embedding(rows, width, "float32", data)


class PictureModel:
    """The model behind one MultimodalEncoder."""

    def __init__(self, package: Package, given: dict[str, Any]) -> None:
        self.package, self._expander = package, Expander(Path(given["model"]))
        self.closed = False

    def generate_async(self, inputs: dict[str, Any]) -> Any:
        assert inputs["prompt_token_ids"]
        (picture,) = inputs["multi_modal_data"]["image"]
        handle = {"tensor": self._expander.encoded(picture)}
        params = self.package.make("DisaggregatedParams", multimodal_embedding_handles=[handle])
        return self.package.make("RequestOutput", _Encoding(), disaggregated_params=params)

    def shutdown(self) -> None:
        self.closed = True


class _Encoding:
    """The methods of a RequestOutput."""

    async def aresult(self) -> None:
        await asyncio.sleep(0)

    def abort(self) -> None:
        """Does nothing: it is over soon."""


def shared(package: Package, tensor_info: dict[str, Any]) -> Any:
    """A handle is good for one reading."""
    return package.make("SharedTensorContainer", _Local(tensor_info.pop("tensor")))


class _Local:
    def __init__(self, made: Any) -> None:
        self._made = made

    def get_local_view(self) -> Any:
        return self._made
