"""The process of SGLang's encoder: no event loop, one picture after the other."""

from typing import Any

from app.engines.base import Embedding, MediaInput
from app.pools.schema import Pool

_LOADED: dict[str, Any] = {}  # the encoder and its family; or why there is none


def load(fields: dict[str, Any], pool: Pool) -> None:
    """`fields`: of SGLang's ServerArgs. What goes wrong is told by `loaded`."""
    try:
        _LOADED.update(_encoder(fields, pool))
    except BaseException as exc:  # noqa: BLE001 (a process that fails here says nothing of why)
        _LOADED["refusal"] = str(exc) or repr(exc)


def loaded() -> str:
    """The reason why it is not; empty if it is."""
    return str(_LOADED.get("refusal", ""))


def encode(one: MediaInput) -> Embedding:
    """Raises: ValueError for a picture that the model can't take; whatever SGLang raises."""
    import torch
    from sglang.srt.managers.schedule_batch import Modality, MultimodalDataItem

    features = _LOADED["family"].features(one)
    item = MultimodalDataItem(modality=Modality.IMAGE, feature=features.feature, model_specific_data=features.data)
    with torch.inference_mode():
        rows = _LOADED["encoder"].model.get_image_feature([item])
    rows = rows.reshape(-1, rows.shape[-1]).contiguous().cpu()
    dtype = str(rows.dtype)[len("torch.") :]
    count, width = rows.shape
    return Embedding(count, width, dtype, rows.view(torch.uint8).numpy().tobytes())


def _encoder(fields: dict[str, Any], pool: Pool) -> dict[str, Any]:
    from sglang.srt.disaggregation.encoder.server import MMEncoder
    from sglang.srt.plugins import load_plugins
    from sglang.srt.runtime_context import publish
    from sglang.srt.server_args import PortArgs, ServerArgs

    import app.engines.sglang  # noqa: F401 (its environment)
    from app.engines.sglang.families import FAMILIES

    load_plugins()
    args = ServerArgs(**fields)
    publish(args, role="encoder")
    ports = PortArgs.init_new(args)
    encoder = MMEncoder(args, dist_init_method=f"tcp://127.0.0.1:{ports.nccl_port}")
    config = encoder.model_config.hf_config
    if config.model_type not in FAMILIES:
        raise ValueError(f"pictures of {config.model_type} can't be encoded apart")
    return {"encoder": encoder, "family": FAMILIES[config.model_type](config, pool, None)}
