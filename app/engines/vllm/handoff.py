"""KV that goes from the engine that computes a prompt to the one that decodes: what vLLM is asked, what it answers.

vLLM's NixlConnector pulls: the engine that has computed a prompt keeps its blocks for a lease and says where they lie;
the engine that decodes is given that, reads them, and its notification frees them. While a request waits for its turn
to read, vLLM renews the lease by itself.
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
from app.messages import Handoff, KvHandle, KvTransfer, PartialOutput, Sampling
from app.store import clock

_KEEP = {  # what the connector wants to see in a request whose KV it shall keep
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
_LEASE_S = 30.0  # vLLM's default
_MARGIN = 1 / 6  # of the lease: for clocks that differ, and the way to the engine that renews it


class Compatible(msgspec.Struct, frozen=True):
    """What two engines must have in common; the rest vLLM checks itself when they first meet."""

    block_size: int
    layers: int
    heads: int
    head_size: int
    dtype: str


class Lender:
    """The KV blocks that an engine has lent and may still hold."""

    def __init__(self, config: VllmConfig, stats: StatLogger) -> None:
        self._config, self._stats = config, stats
        transfer = config.kv_transfer_config
        self.lease_s = float(transfer.get_from_extra_config("kv_lease_duration", _LEASE_S))
        self.compatible = _compatible(config)
        self._blocks: dict[str, tuple[int, float]] = {}  # vLLM's id → blocks, when vLLM frees them at the latest

    def lend(self, kv: dict[str, Any], tokens: int) -> KvHandle:
        """`kv`: the kv_transfer_params of a finished prefill."""
        now = clock.now()
        kept = sum(len(group) for group in kv["remote_block_ids"])
        # The engine that decodes may renew the lease while the request waits there.
        self._blocks[kv["remote_request_id"]] = (kept, now + 2 * self.lease_s)
        params = {"kv_transfer_params": kv, "compatible": msgspec.to_builtins(self.compatible)}
        return KvHandle(kv["remote_engine_id"], now + self.lease_s * (1 - _MARGIN), tokens, params)

    def pulled(self, tokens: int) -> KvTransfer:
        """Of a whole prompt, what the prefix cache had included, and at the average speed: vLLM tells sums only."""
        size = math.ceil(tokens / self._config.cache_config.block_size) * block_bytes(self._config)
        speed = self._stats.transfer_bytes_per_s
        return KvTransfer(tokens, size, size / speed if speed else 0.0)

    def check(self, handoff: Handoff) -> dict[str, Any]:
        """The kv_transfer_params. Raises: HandoffFailed for what vLLM can't be asked to pull."""
        if not isinstance(handoff, KvHandle):
            raise HandoffFailed("vLLM hands over in sequence, not through a room.")
        if clock.now() >= handoff.expires:
            raise HandoffFailed("The handoff has expired.")
        try:
            theirs = msgspec.convert(handoff.params["compatible"], Compatible)
        except (KeyError, msgspec.ValidationError) as exc:
            raise HandoffFailed("The handoff is not one of vLLM's.") from exc
        if theirs != self.compatible:
            raise HandoffFailed(f"The holder's KV is {theirs}; here it is {self.compatible}.")
        return dict(handoff.params["kv_transfer_params"])

    def lent_blocks(self, used: int) -> int:
        """Of `used` ones. vLLM doesn't say which were pulled, so it may be less while requests run."""
        now = clock.now()
        self._blocks = {id_: lent for id_, lent in self._blocks.items() if lent[1] > now} if used else {}
        return min(used, sum(blocks for blocks, _ in self._blocks.values()))


def block_bytes(config: VllmConfig) -> int:
    """Of KV in a block, over all layers and ranks of one model."""
    it = _compatible(config)
    dtype = kv_cache_dtype_str_to_dtype(config.cache_config.cache_dtype, config.model_config)
    parts = 1 if config.model_config.use_mla else 2  # latent, or keys and values
    return int(parts * it.block_size * it.layers * it.heads * it.head_size * dtype.itemsize)


def keeping() -> dict[str, Any]:
    """`extra_args` of a request whose KV shall be kept."""
    return {"kv_transfer_params": dict(_KEEP)}


def pulling(kv: dict[str, Any] | None, begun: PartialOutput | None) -> dict[str, Any]:
    """`extra_args` of a request that goes on with what another engine computed, and with what it answered."""
    args: dict[str, Any] = {}
    if kv is not None:
        args["kv_transfer_params"] = kv
    if begun is not None and begun.tokens:
        args[BEGUN] = list(begun.tokens)
    return args


def first_token(sampling: Sampling) -> Sampling:
    """The request to the engine that computes the prompt."""
    return replace(sampling, n=1, max_tokens=1, min_tokens=min(sampling.min_tokens, 1))


def held_back(text: str, sampling: Sampling) -> str:
    """The text that vLLM would give with an unfinished first token: what may become a stop string waits."""
    waits = max(map(len, sampling.stop), default=1) - 1 if not sampling.include_stop else 0
    return text[: max(len(text) - waits, 0)]


def behind(step: StepOutput, begun: PartialOutput, tokens: int, text_len: int) -> StepOutput:
    """A step of an answer of which `begun` is out; `tokens` and `text_len` came before this step."""
    known = max(len(begun.tokens) - tokens, 0)
    return replace(
        step,
        text=step.text[max(begun.text_len - text_len, 0) :],
        tokens=step.tokens[known:],
        logprobs=None if step.logprobs is None else step.logprobs[known:],
    )


def split(request: GenerateRequest) -> tuple[GenerateRequest, GenerateRequest]:
    """The first choice, which pulls, and the others, which find in the cache what it pulled.

    Each of vLLM's own children would pull, and the first one done would free the blocks under the others.
    """
    s = request.sampling
    seed = None if s.seed is None else s.seed + 1  # vLLM gives choice i seed + i
    others = replace(request, handoff=None, sampling=replace(s, n=s.n - 1, seed=seed))
    return replace(request, sampling=replace(s, n=1)), others


def discarding(lent: KvHandle) -> tuple[RunId, dict[str, Any]]:
    """The id and the parameters of the request that is refused at once."""
    return RunId(f"discard-{lent.params['kv_transfer_params']['remote_request_id']}"), lent.params["kv_transfer_params"]


def _compatible(config: VllmConfig) -> Compatible:
    model = config.model_config
    return Compatible(
        block_size=config.cache_config.block_size,
        layers=model.get_total_num_hidden_layers(),
        heads=model.get_total_num_kv_heads(),
        head_size=model.get_head_size(),
        dtype=f"{model.dtype} {config.cache_config.cache_dtype}",
    )
