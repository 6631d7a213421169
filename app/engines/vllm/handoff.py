"""KV transfer from a prefill engine to a decode engine: parameters to and from vLLM.

vLLM's NixlConnector pulls: the prefill engine keeps a prompt's blocks for a lease and says where they are; the decode
engine reads them, and its notification frees them. While a request waits to read, vLLM renews the lease by itself.
"""

import math
from typing import Any

import msgspec
from msgspec.structs import replace
from vllm.config import VllmConfig
from vllm.utils.torch_utils import kv_cache_dtype_str_to_dtype

from app.engines.base import GenerateRequest, StepOutput
from app.engines.vllm.force import BEGUN
from app.engines.vllm.stats import StatLogger
from app.errors import HandoffFailed
from app.ids import RunId
from app.messages.handoff import Handoff, KvHandle
from app.messages.job import KvTransfer, PartialOutput, Sampling
from app.store import clock

_KEEP = {  # tells the connector to keep a request's KV
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
_LEASE_S = 30.0  # vLLM's default
_MARGIN = 1 / 6  # of the lease: for differing clocks, and the time until the decode engine renews it


class Compatible(msgspec.Struct, frozen=True):
    """Properties that two engines must have in common; vLLM itself checks the rest at their first contact."""

    block_size: int
    layers: int
    heads: int
    head_size: int
    dtype: str


class VllmLender:
    """The KV blocks that an engine has lent and may still hold."""

    def __init__(self, config: VllmConfig, stats: StatLogger) -> None:
        self._config, self._stats = config, stats
        transfer = config.kv_transfer_config
        self.lease_s = float(transfer.get_from_extra_config("kv_lease_duration", _LEASE_S))
        self.compatible = _compatible(config)
        # A state after the whole prompt gives no first token: the prefill engine leaves out the prompt's last one, and
        # what it makes itself stands behind a shorter prompt.
        self.makes_first = not config.model_config.has_inner_state
        self._blocks: dict[str, tuple[int, float]] = {}  # vLLM's id → blocks, when vLLM frees them at the latest

    def lend(self, kv: dict[str, Any], tokens: int) -> KvHandle:
        """`kv`: the kv_transfer_params of a finished prefill."""
        now = clock.now()
        block_count = sum(len(group) for group in kv["remote_block_ids"])
        # The decode engine may renew the lease while the request waits there.
        self._blocks[kv["remote_request_id"]] = (block_count, now + 2 * self.lease_s)
        params = {"kv_transfer_params": kv, "compatible": msgspec.to_builtins(self.compatible)}
        return KvHandle(kv["remote_engine_id"], now + self.lease_s * (1 - _MARGIN), tokens, params)

    def pulled(self, tokens: int) -> KvTransfer:
        """An estimate, since vLLM reports sums only: the whole prompt, cached blocks included, at the average speed."""
        size = math.ceil(tokens / self._config.cache_config.block_size) * block_bytes(self._config)
        speed = self._stats.transfer_bytes_per_s
        return KvTransfer(tokens, size, size / speed if speed else 0.0)

    def check(self, handoff: Handoff) -> dict[str, Any]:
        """The kv_transfer_params. Raises: HandoffFailed if this vLLM can't pull from it."""
        if not isinstance(handoff, KvHandle):
            raise HandoffFailed("vLLM hands over in sequence, not at a rendezvous.")
        if clock.now() >= handoff.expires:
            raise HandoffFailed("The handoff has expired.")
        try:
            theirs = msgspec.convert(handoff.params["compatible"], Compatible)
        except (KeyError, msgspec.ValidationError) as exc:
            raise HandoffFailed("The handoff is not from a vLLM engine.") from exc
        if theirs != self.compatible:
            raise HandoffFailed(f"The holder's KV is {theirs}; here it is {self.compatible}.")
        return dict(handoff.params["kv_transfer_params"])

    def lent_blocks(self, in_use: int) -> int:
        """Number of the `in_use` blocks that are lent; an upper bound, since vLLM doesn't report pulled ones."""
        now = clock.now()
        self._blocks = {id_: loan for id_, loan in self._blocks.items() if loan[1] > now} if in_use else {}
        return min(in_use, sum(blocks for blocks, _ in self._blocks.values()))


def block_bytes(config: VllmConfig) -> int:
    """Bytes of KV in a block, over all layers and ranks of one model.

    Without layers of which a prompt leaves a window or a state, however long it is: that is little beside the others.
    """
    it = _compatible(config)
    kinds = getattr(config.model_config.hf_text_config, "layer_types", None) or []
    layers = it.layers * kinds.count("full_attention") // len(kinds) if "full_attention" in kinds else it.layers
    dtype = kv_cache_dtype_str_to_dtype(config.cache_config.cache_dtype, config.model_config)
    parts = 1 if config.model_config.use_mla else 2  # latent, or keys and values
    return int(parts * it.block_size * layers * it.heads * it.head_size * dtype.itemsize)


def keeping() -> dict[str, Any]:
    """The `extra_args` that make vLLM keep a request's KV."""
    return {"kv_transfer_params": dict(_KEEP)}


def pulling(kv: dict[str, Any] | None, beginning: PartialOutput | None) -> dict[str, Any]:
    """The `extra_args` that make vLLM pull a prompt's KV, and begin with the tokens so far."""
    args: dict[str, Any] = {}
    if kv is not None:
        args["kv_transfer_params"] = kv
    if beginning is not None and beginning.tokens:
        args[BEGUN] = list(beginning.tokens)
    return args


def first_token(sampling: Sampling) -> Sampling:
    """The sampling parameters for the prefill engine: one token."""
    return replace(sampling, n=1, max_tokens=1, min_tokens=min(sampling.min_tokens, 1))


def held_back(text: str, sampling: Sampling) -> str:
    """The text of a first token as vLLM would send it: without an end that may begin a stop string."""
    waits = max(map(len, sampling.stop), default=1) - 1 if not sampling.include_stop else 0
    return text[: max(len(text) - waits, 0)]


def behind(step: StepOutput, beginning: PartialOutput, tokens: int, text_len: int) -> StepOutput:
    """A step without what is in `beginning` already; `tokens` and `text_len` (characters) came before this step."""
    known_count = max(len(beginning.tokens) - tokens, 0)
    return replace(
        step,
        text=step.text[max(beginning.text_len - text_len, 0) :],
        tokens=step.tokens[known_count:],
        logprobs=None if step.logprobs is None else step.logprobs[known_count:],
    )


def split(request: GenerateRequest) -> tuple[GenerateRequest, GenerateRequest]:
    """A request for the first choice, which pulls, and one for the others, which find the KV in the cache.

    In one request each of vLLM's children would pull, and the first one done would free the blocks of the others.
    """
    s = request.sampling
    seed = None if s.seed is None else s.seed + 1  # vLLM gives choice i seed + i
    others = replace(request, handoff=None, sampling=replace(s, n=s.n - 1, seed=seed))
    return replace(request, sampling=replace(s, n=1)), others


def discarding(loan: KvHandle) -> tuple[RunId, dict[str, Any]]:
    """The id and the parameters of a request to be refused at once, which makes vLLM free the lent KV."""
    return RunId(f"discard-{loan.params['kv_transfer_params']['remote_request_id']}"), loan.params["kv_transfer_params"]


def _compatible(config: VllmConfig) -> Compatible:
    model = config.model_config
    return Compatible(
        block_size=config.cache_config.block_size,
        layers=model.get_total_num_hidden_layers(),
        heads=model.get_total_num_kv_heads(),
        head_size=model.get_head_size(),
        dtype=f"{model.dtype} {config.cache_config.cache_dtype}",
    )
