"""The `args` of a pool with engine diffusers, checked strictly."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class DiffusersArgs(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    device: str | None = None  # "cuda", "cuda:1", "cpu"; null: a GPU if there is one
    dtype: Literal["float32", "bfloat16", "float16"] | None = None  # null: bfloat16 on a GPU, float32 on a CPU
    variant: str | None = None  # of the files of weights, such as "fp16"
    # Pictures of one shape that are painted together, if that changes none of their bytes: tried once for each shape.
    batch: Annotated[int, Field(ge=1, le=64)] = 4
    threads: Annotated[int, Field(ge=1)] | None = None  # of torch, on a CPU; null: as torch has it
    cpu_offload: bool = False  # only the model of the present stage is on the GPU
    vae_tiling: bool = False  # large pictures are decoded in tiles
