"""KV that goes from the engine that computes a prompt to the one that decodes: TensorRT-LLM's disaggregated parameters.

The engine that has computed a prompt keeps it, and says in an opaque state where it lies; the engine that decodes is
given that with the first token, and its transceiver (NIXL) reads the KV. What nobody takes is freed after a time limit.
"""

import binascii
import secrets
import socket
from base64 import b64decode, b64encode
from typing import Any, NamedTuple

import msgspec
from tensorrt_llm.disaggregated_params import DisaggregatedParams

from app.engines.base import GenerateRequest
from app.errors import EngineFailed, HandoffFailed
from app.messages.handoff import Handoff, KvHandle
from app.store import clock

_GLOBAL = 2**42  # the engine's own ids are less
_MARGIN = 1 / 6  # of the time limit: for clocks that differ, and the way to the engine that reads


class Compatible(msgspec.Struct, frozen=True):
    """Properties that two engines must have in common; the rest they check themselves when they first meet."""

    block_size: int
    block_bytes: int
    model: str  # its kind


class _Lent(msgspec.Struct, frozen=True):
    """Parameters that cross to the other engine: nothing of prompt or answer."""

    compatible: Compatible
    state: str  # base64
    request: int
    ctx_request: int | None = None
    ctx_dp_rank: int | None = None
    ctx_info_endpoint: str | None = None
    # Of a prompt with pictures, whose model counts positions in its own way. They lie in the holder's memory.
    positions: dict[str, Any] | None = None
    ahead: dict[str, Any] | None = None
    host: str = ""


class _Kept(NamedTuple):
    blocks: int
    until: float  # by Redis' clock


class TrtllmLender:
    """The KV blocks that an engine has lent and may still hold."""

    def __init__(self, compatible: Compatible, timeout_s: float) -> None:
        self._compatible, self._timeout_s = compatible, timeout_s
        self._holder = f"trtllm-{secrets.token_hex(8)}"
        self._kept: list[_Kept] = []

    def lend(
        self, prefill_params: DisaggregatedParams, reply_params: DisaggregatedParams | None, tokens: int
    ) -> KvHandle:
        """Lends the KV of a finished prefill. Raises: EngineFailed."""
        if reply_params is None or reply_params.opaque_state is None:
            raise EngineFailed("TensorRT-LLM did not keep the prompt's KV.")
        now = clock.now()
        self._kept.append(_Kept(-(-tokens // self._compatible.block_size), now + self._timeout_s))
        params = _Lent(
            self._compatible,
            b64encode(reply_params.opaque_state).decode(),
            prefill_params.disagg_request_id,
            ctx_request=reply_params.ctx_request_id,
            ctx_dp_rank=reply_params.ctx_dp_rank,
            ctx_info_endpoint=reply_params.ctx_info_endpoint,
            positions=reply_params.mrope_position_ids_handle,
            ahead=reply_params.mrope_position_deltas_handle,
            host=socket.gethostname(),
        )
        expires = now + self._timeout_s * (1 - _MARGIN)
        return KvHandle(self._holder, expires, tokens, msgspec.to_builtins(params))

    def pulling(self, handoff: Handoff, request: GenerateRequest) -> DisaggregatedParams:
        """Raises: HandoffFailed for what TensorRT-LLM can't be asked to pull."""
        if not isinstance(handoff, KvHandle):
            raise HandoffFailed("TensorRT-LLM hands over in sequence, not through a room.")
        if clock.now() >= handoff.expires:
            raise HandoffFailed("The handoff has expired.")
        if request.sampling.n > 1 or not request.begun or len(request.begun[0].tokens) != 1:
            raise HandoffFailed("TensorRT-LLM goes on behind the first token of one choice only.")
        try:
            params = msgspec.convert(handoff.params, _Lent)
            state = b64decode(params.state, validate=True)
        except (msgspec.ValidationError, binascii.Error) as exc:
            raise HandoffFailed("The handoff is not one of TensorRT-LLM's.") from exc
        if params.compatible != self._compatible:
            raise HandoffFailed(f"The holder's KV is {params.compatible}; here it is {self._compatible}.")
        has_positions = params.positions is not None or params.ahead is not None
        if has_positions and params.host != socket.gethostname():
            raise HandoffFailed(f"The positions of its pictures lie in the memory of {params.host}.")
        return DisaggregatedParams(
            request_type="generation_only",
            first_gen_tokens=list(request.begun[0].tokens),
            ctx_request_id=params.ctx_request,
            opaque_state=state,
            disagg_request_id=params.request,
            ctx_dp_rank=params.ctx_dp_rank,
            ctx_info_endpoint=params.ctx_info_endpoint,
            mrope_position_ids_handle=params.positions,
            mrope_position_deltas_handle=params.ahead,
        )

    def lent_blocks(self, in_use: int) -> int:
        """Number of the `in_use` blocks that are lent: TensorRT-LLM doesn't say which of them it keeps for others."""
        now = clock.now()
        self._kept = [loan for loan in self._kept if loan.until > now] if in_use else []
        return min(in_use, sum(loan.blocks for loan in self._kept))


def keeping() -> DisaggregatedParams:
    """Parameters of a request whose KV shall be kept. Its id is unique in the fleet, as the engines' own are not."""
    id_ = _GLOBAL + secrets.randbelow(2**63 - _GLOBAL)
    return DisaggregatedParams(request_type="context_only", disagg_request_id=id_)


def block_bytes(config: dict[str, Any], block_size: int, dtype: str) -> int:
    """Bytes of KV in a block, over all layers, by the model's config.json.

    It is 1 where that says nothing: 0 is lent to nobody.
    """
    config = config.get("text_config", config)  # of a model of several modalities
    size = 1 if "fp8" in dtype else 4 if dtype == "float32" else 2
    layers = config.get("num_hidden_layers", 0)
    if "kv_lora_rank" in config:  # one latent vector for all heads
        return int(size * block_size * layers * (config["kv_lora_rank"] + config.get("qk_rope_head_dim", 0))) or 1
    heads = config.get("num_attention_heads", 0)
    width = config.get("head_dim") or (config.get("hidden_size", 0) // heads if heads else 0)
    return int(2 * size * block_size * layers * (config.get("num_key_value_heads") or heads) * width) or 1
