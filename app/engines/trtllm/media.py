"""Pictures in prompts, as TensorRT-LLM takes them: one token for each, which it expands itself."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from app.engines.base import Embedding, EmbeddingShape, MediaInput
from app.errors import EngineFailed, SettingsError
from app.tokenizing.tokenizer import Tokenizer

_DTYPES = ("float32", "float16", "bfloat16")


class Eyes:
    """The form of prompts with pictures, of a model that sees."""

    def __init__(self, token: int, tokenizer: Tokenizer) -> None:
        """`token`: what stands for a picture before it is expanded, and for each row of it after."""
        self.token, self._tokenizer = token, tokenizer

    def prompt(self, tokens: list[int], media: list[MediaInput]) -> dict[str, Any]:
        """`tokens`: expanded. With encoded pictures if all of them are, and else with pixels."""
        ends = [0, *(one.media.offset + one.media.length for one in media)]
        begins = [*(one.media.offset for one in media), len(tokens)]
        pieces = [tokens[begin:end] for begin, end in zip(ends, begins, strict=True)]
        short = [token for piece in pieces[:-1] for token in (*piece, self.token)] + pieces[-1]
        embeddings = [one.embedding for one in media if one.embedding is not None]
        if len(embeddings) == len(media):
            # With embeddings it takes no token ids (TRTLLM-11294), so the text has to become the same tokens there.
            text = self._tokenizer.decode(short, skip_special_tokens=False)
            if self._tokenizer.encode(text, add_special_tokens=False) == short:
                return {"prompt": text, "multi_modal_embeddings": {"image": [_tensor(one) for one in embeddings]}}
        return {
            "prompt_token_ids": short,
            "multi_modal_data": {"image": [picture(one) for one in media]},
            "multi_modal_uuids": {"image": [one.media.sha256 for one in media]},
            "mm_processor_kwargs": {},
        }


def salt_of_pictures(salt: str | None, media: Sequence[MediaInput]) -> str | None:
    """A salt for a prompt that goes without its pictures: its tokens are those of a prompt with other ones, too."""
    if not media:
        return salt
    names = ",".join(f"{one.media.sha256}@{one.media.offset}" for one in media)
    return hashlib.sha256(f"{salt or ''} {names}".encode()).hexdigest()


def picture(one: MediaInput) -> Image.Image:
    height, width = one.media.shape
    return Image.frombytes("RGB", (width, height), one.data)


def picture_token(config: Mapping[str, Any]) -> int | None:
    """The token of a picture, by a model's config.json; None: it doesn't see."""
    token = config.get("image_token_id")
    return token if isinstance(token, int) else None


def shape(config: Mapping[str, Any], dtype: str) -> EmbeddingShape | None:
    """The shape of encoded pictures that the model takes; None if its files don't say it. `dtype`: as the pool says."""
    text = config.get("text_config") or config
    width = text.get("hidden_size")
    dtype_name = dtype if dtype != "auto" else text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype")
    if not isinstance(width, int) or dtype_name not in _DTYPES:
        return None
    return EmbeddingShape(width, str(dtype_name), picture_token(config))


def embedding(result: Any) -> Embedding:
    """The embedding that a tensor of rows × width has. Raises: EngineFailed."""
    import torch

    if result.dim() == 3 and result.shape[0] == 1:
        result = result[0]
    name = str(result.dtype).removeprefix("torch.")
    if result.dim() != 2 or name not in _DTYPES:
        raise EngineFailed(f"TensorRT-LLM has encoded the picture as {tuple(result.shape)} of {name}.")
    rows, width = result.shape
    return Embedding(rows, width, name, result.contiguous().view(torch.uint8).numpy().tobytes())


def _tensor(embedding: Embedding) -> Any:
    import torch

    numbers = torch.frombuffer(bytearray(embedding.data), dtype=getattr(torch, embedding.dtype))
    return numbers.reshape(embedding.rows, embedding.width)


def model_config(folder: Path) -> dict[str, Any]:
    """Its config.json. Raises: SettingsError."""
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as exc:
        raise SettingsError(f"path={folder}: {exc}") from exc
    return config
