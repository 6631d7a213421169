"""The second engine, where the model runs on it, with as few blocks."""

from contextlib import AbstractAsyncContextManager

from ops.models.loaded import Loaded, Model, started

_ARGS = {"load_format": "dummy", "max_total_tokens": 6000}


def on_sglang(model: Model) -> AbstractAsyncContextManager[Loaded]:
    """Raises: XylemError, of SGLang's own reason."""
    return started(model, engine="sglang", args=_ARGS)
