"""A pool's settings as those of SGLang's diffusion engine."""

import os
from dataclasses import fields
from typing import Any, NamedTuple

import torch

# Read when SGLang is imported. Models are folders here: nothing is looked up.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if not torch.accelerator.is_available():
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")

from sglang.multimodal_gen.runtime.server_args import ServerArgs

from app.engines.log_level import log_level
from app.engines.pool_args import check_names, take_environment
from app.engines.ports import free_ports
from app.errors import SettingsError
from app.pools.schema import Pool

# Waiting threads burn a core, and two compute slower than one.
_CPU_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "TORCH_COMPILE_DISABLE": "1"}


class SglangPainterArgs(NamedTuple):
    environment: dict[str, str]  # to be set where it is not set already
    fields: dict[str, Any]  # of SGLang's ServerArgs


def engine_args(pool: Pool) -> SglangPainterArgs:
    """Raises: SettingsError naming the bad argument."""
    arguments = {key.removeprefix("--").replace("-", "_"): value for key, value in pool.args.items()}
    environment = take_environment(arguments)
    port = free_ports(3)
    own = {
        "model_path": str(pool.model_dir),
        "port": port,  # names the socket of its progress; nothing listens on it
        "scheduler_port": port + 1,
        "master_port": port + 2,
        "log_level": log_level().lower(),
    }
    names = {field.name for field in fields(ServerArgs) if field.init}
    check_names(arguments, names, own, "SGLang's diffusion engine")
    gpus = arguments.get("num_gpus", 1)
    if type(gpus) is not int or gpus < 1:
        raise SettingsError(f"args.num_gpus={gpus!r}: must be a number from 1")
    ours = {} if torch.accelerator.is_available() else _CPU_ENVIRONMENT
    return SglangPainterArgs(ours | environment, {"num_gpus": gpus} | arguments | own)
