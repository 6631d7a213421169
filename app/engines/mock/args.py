"""The `args` of a mock pool, checked strictly."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.engines.kv_publisher import Count, KvEventArgs
from app.messages.media import MediaKind
from app.pools.schema import MOCK_DIMENSIONS

Positive = Annotated[float, Field(gt=0)]  # .inf too
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class HandoffArgs(BaseModel):
    """Settings for moving KV from one engine to another."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    shape: Literal["in_sequence", "at_once"] = "in_sequence"
    nixl: bool = False  # move bytes with NIXL; False: only take the time
    block_bytes: Annotated[int, Field(ge=128, multiple_of=64)] = 4 * 2**20  # of KV: 32 tokens of 128 KiB
    gb_per_s: Positive = 25.0  # GB/s of the simulated network card: 200 Gb/s
    lease_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 30.0  # how long a computed prompt is kept
    timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 5.0  # for KV to arrive
    layout: str = ""  # any name of model and tensor layout; both engines need the same


class TierArgs(BaseModel):
    """Speeds at which KV comes back from the pool's `tiers`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    host_gb_per_s: Positive = 20.0  # GB/s from host memory to the device: PCIe 4.0, 16 lanes
    store_gb_per_s: Positive = 5.0  # GB/s from the store into host memory: an NVMe disk, or 50 Gb/s


class MockArgs(BaseModel):
    """Defaults are an 8-billion-parameter model on one H100; README.md has the arithmetic."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    prefill_tokens_per_s: Positive = 25_000.0
    step_ms: NotNegative = 7.0
    step_ms_per_sequence: NotNegative = 0.05
    speedup: Positive = 1.0  # divides all times, also load_s; .inf: no delays
    total_blocks: Count = 8192
    max_batched_tokens: Count = 8192  # in one step, prefill and decode together
    answer_tokens: Count = 256  # an answer's length unless something else ends it; then EOS follows
    kv_events: KvEventArgs | None = KvEventArgs()  # None: not published
    handoff: HandoffArgs = HandoffArgs()
    tiers: TierArgs = TierArgs()
    load_s: NotNegative = 0.0
    fail_to_load: str | None = None  # loading fails with this message
    dimensions: Count = MOCK_DIMENSIONS  # of an embedding
    max_adapters: Annotated[int, Field(ge=0)] = 8  # LoRA adapters held at once
    max_adapter_rank: Count = 64
    adapter_load_s: NotNegative = 0.0  # loading time of an adapter
    fails_on_adapter: str | None = None  # adapters whose name begins with this can't be loaded
    script: dict[str, str] = {}  # a prompt that contains a key is answered with its value
    dies_on: str | None = None  # a prompt that contains this kills the process
    sleep_s: NotNegative = 0.0
    wake_s: NotNegative = 0.0
    weights_s: NotNegative = 0.0  # to load other weights
    media: list[MediaKind] = ["image", "audio"]  # kinds that it takes in prompts
    # A token that stands for a picture in prompts of a model whose files don't say what it becomes: one for each
    # 32 x 32 pixels. "": the engine can't be asked.
    picture_marker: str = ""
    video_marker: str = ""  # the same for a video: so many for each of its frames
    dodges: bool = False  # a picture becomes one token more in answers than it says when it is asked
    encode_tokens_per_s: Positive = 10_000.0  # placeholders of pictures, one picture after the other
    embedding_width: Count = 64  # numbers in a row of an encoded picture
    embedding_rows: int = 0  # rows more than there are placeholders: a wrong shape
    dies_on_picture: int | None = None  # encoding a picture whose first byte is this kills the process
    hangs_on: str | None = None  # a prompt that contains this makes the engine hang, in a live process
    inventory: bool = False  # tells other processes of the host what its caches hold
