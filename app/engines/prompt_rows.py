"""Rows of numbers that a client gives instead of a prompt's tokens, as a tensor. Only adapters of engines import it."""

import torch

from app.engines.base import GenerateRequest
from app.errors import EngineFailed, RequestError
from app.messages.media import Media


def prompt_rows(request: GenerateRequest, width: int, model_dtype: torch.dtype) -> tuple[Media, torch.Tensor]:
    """The place of the rows in the prompt, and the rows in the model's dtype. Engines would die of others.

    `width`: of the model's own rows. Raises: RequestError, EngineFailed.
    """
    if len(request.media) != 1:
        raise RequestError("This model's engine takes one prompt embedding.")
    (one,) = request.media
    media = one.media
    dtype = getattr(torch, media.dtype, None)
    height, columns = media.shape
    if not isinstance(dtype, torch.dtype) or columns != width:
        raise RequestError("'prompt_embeds': rows of another width or dtype than the model's.", param="prompt_embeds")
    end = media.offset + media.length
    if len(one.data) != height * width * dtype.itemsize or height != media.length or end > len(request.prompt):
        raise EngineFailed("A prompt embedding is not as the request says.")
    rows = torch.frombuffer(bytearray(one.data), dtype=dtype).reshape(height, width).to(model_dtype)
    if not torch.isfinite(rows).all():
        raise RequestError("'prompt_embeds': numbers that the model's dtype does not have.", param="prompt_embeds")
    return media, rows
