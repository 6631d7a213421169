"""What `args` of a mock pool may say, checked strictly."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.errors import SettingsError

Positive = Annotated[float, Field(gt=0)]  # .inf too
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(gt=0)]


class KvEventArgs(BaseModel):
    """Where KV events are published. Both sockets bind; port `*` lets the system choose."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    endpoint: str = "tcp://127.0.0.1:*"
    replay_endpoint: str = "tcp://127.0.0.1:*"
    topic: str = ""
    buffer_steps: Count = 10_000  # batches kept for replay

    def of_rank(self, rank: int) -> "KvEventArgs":
        """A data-parallel rank's own endpoints: vLLM adds the rank to a port that is named."""
        ends = {name: _add_to_port(getattr(self, name), rank) for name in ("endpoint", "replay_endpoint")}
        return self.model_copy(update=ends)


def _add_to_port(endpoint: str, rank: int) -> str:
    base, _, port = endpoint.rpartition(":")
    return f"{base}:{int(port) + rank}" if port.isdigit() else endpoint


class HandoffArgs(BaseModel):
    """How KV goes from one engine to another."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    shape: Literal["in_sequence", "at_once"] = "in_sequence"
    nixl: bool = False  # move bytes; else only take the time
    block_bytes: Annotated[int, Field(ge=128, multiple_of=64)] = 4 * 2**20  # of KV: 32 tokens of 128 KiB
    gb_per_s: Positive = 25.0  # a network card of 200 Gb/s, when it is simulated
    lease_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 30.0  # a computed prompt is kept so long
    timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 5.0  # until KV must have come
    layout: str = ""  # of model and tensors, in any words: equal on both sides


class MockArgs(BaseModel):
    """Defaults are an 8-billion-parameter model on one H100; README.md has the arithmetic."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    prefill_tokens_per_s: Positive = 25_000.0
    step_ms: NotNegative = 7.0
    step_ms_per_sequence: NotNegative = 0.05
    speedup: Positive = 1.0  # divides every time above; .inf: as fast as this process can
    total_blocks: Count = 8192
    max_batched_tokens: Count = 8192  # in one step, prefill and decode together
    answer_tokens: Count = 256  # an answer's length when nothing else ends it; EOS follows
    kv_events: KvEventArgs | None = KvEventArgs()  # None: not published
    handoff: HandoffArgs = HandoffArgs()
    load_s: NotNegative = 0.0
    fail_to_load: str | None = None  # loading fails with this message
    dimensions: Count = 384  # of an embedding
    max_adapters: Annotated[int, Field(ge=0)] = 8  # LoRA adapters held at once
    max_adapter_rank: Count = 64
    adapter_load_s: NotNegative = 0.0  # how long one takes to load
    fails_on_adapter: str | None = None  # one whose name begins so can't be loaded
    script: dict[str, str] = {}  # a prompt with the key in it is answered with the value
    dies_on: str | None = None  # a prompt with this in it kills the process
    hangs_on: str | None = None  # a prompt with this in it stops the engine for good, and the process goes on


def parse_args(args: dict[str, Any]) -> MockArgs:
    """Raises: SettingsError naming each bad key and its value."""
    try:
        return MockArgs.model_validate(args)
    except ValidationError as exc:
        problems = (f"args.{'.'.join(map(str, e['loc']))}={e['input']!r}: {e['msg']}" for e in exc.errors())
        raise SettingsError("; ".join(problems)) from exc
