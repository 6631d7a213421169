"""Requests that admins may make about LoRA adapters."""

from typing import Annotated, Literal

from pydantic import Field

from app.schemas.body import Body

# A folder of the workers is called so, and so is a label of metrics; "@" stands before the version.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Source = Annotated[str, Field(min_length=1, max_length=2048)]


class NewAdapter(Body):
    name: Name
    source: Source  # a path that workers see, s3://bucket/folder, or https://host/adapter.tar
    model: str  # that it is made for
    sha256: str = ""  # needed for what comes by HTTP
    pools: Annotated[list[str], Field(max_length=256)] = Field(
        default_factory=list
    )  # that load it; none: all of the model
    min_workers: Annotated[int, Field(ge=0, le=10_000)] = 1  # of each pool, that have it before anybody asks


class NewVersion(Body):
    source: Source
    sha256: str = ""


class LoadLora(Body):
    """vLLM's."""

    lora_name: Name
    lora_path: Source
    load_inplace: bool = False  # another version of one that is there
    is_3d_lora_weight: Literal[False] = False  # a layout of experts that other engines don't have
    model: str | None = None  # extension: that it is made for, where several are served
    sha256: str = ""  # extension


class UnloadLora(Body):
    """vLLM's."""

    lora_name: Name
    lora_int_id: int | None = None  # nobody's: the name says which
