"""The stages of a model in vLLM-Omni, before any of them is loaded: whether what they make can be served."""

import os
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Literal

from msgspec import Struct

from app.engines.log_level import log_level

# Read when vLLM is imported. Models are folders here: nothing is looked up.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", log_level())

import vllm_omni
from vllm_omni.config.resolver import resolve_omni_config
from vllm_omni.diffusion.data import OmniDiffusionConfig
from vllm_omni.engine.arg_utils import OmniEngineArgs, OrchestratorArgs
from vllm_omni.platforms import current_omni_platform

from app.engines.pool_args import check_names, take_environment
from app.errors import SettingsError
from app.pools.schema import Pool

VERSION = str(getattr(vllm_omni, "__version__", ""))
Made = Literal["text", "image", "video"]

_TASKS = {"text": "generate", "image": "image", "video": "image"}


class Stage(Struct, frozen=True):
    number: int
    name: str  # thinker, say
    paints: bool  # a diffusion model; else it makes tokens
    makes: str | None  # for clients: text, image, video, audio and others; None: for other stages only


class OmniArgs(Struct, frozen=True):
    environment: dict[str, str]  # to be set where it is not set already
    fields: dict[str, Any]  # of AsyncOmni
    stages: tuple[Stage, ...]


def omni_args(pool: Pool, makes: Made) -> OmniArgs:
    """The arguments of AsyncOmni for a pool that serves what is made of one kind. Raises: SettingsError."""
    arguments = {key.removeprefix("--").replace("-", "_"): value for key, value in pool.args.items()}
    environment = take_environment(arguments)
    own = {"model": str(pool.model_dir), "output_modalities": [makes], "log_stats": False}
    names = {one.name for part in (OmniEngineArgs, OrchestratorArgs, OmniDiffusionConfig) for one in fields(part)}
    check_names(arguments, names, own, "vLLM-Omni")
    stages = _stages(pool, arguments)
    _check(stages, makes)
    _check_device()
    return OmniArgs(environment, arguments | own, stages)


def _stages(pool: Pool, arguments: dict[str, Any]) -> tuple[Stage, ...]:
    """Read from the model's files and the stage configuration alone. Raises: SettingsError."""
    overrides = {**arguments}
    files = {name: overrides.pop(name, None) for name in ("deploy_config", "stage_overrides", "strategy_config")}
    try:
        resolution = resolve_omni_config(
            str(pool.model_dir),
            trust_remote_code=overrides.pop("trust_remote_code", None),
            deploy_config_path=files["deploy_config"],
            cli_overrides=overrides,
            stage_overrides=files["stage_overrides"],
            strategy_config_path=files["strategy_config"],
        )
    except (ValueError, TypeError, KeyError, OSError) as exc:
        raise SettingsError(f"vLLM-Omni refuses the model or its stages: {exc}") from exc
    return tuple(
        Stage(
            one.stage_id,
            one.stage_pipeline_config.model_stage or f"stage {one.stage_id}",
            str(getattr(one.stage_type, "value", one.stage_type)) == "diffusion",
            one.final_output_type if one.final_output else None,
        )
        for one in resolution.stage_configs
    )


def _check(stages: Sequence[Stage], makes: Made) -> None:
    """Raises: SettingsError saying what would work instead."""
    if any(stage.makes == makes for stage in stages):
        return
    useful_stages = [stage for stage in stages if stage.makes in _TASKS]
    other_stages = [stage for stage in stages if stage.makes not in (None, *_TASKS)]
    why = f"no stage of this model makes {makes}"
    if other_stages:
        why += f": {_names(other_stages)}, and no endpoint here answers with that"
    if useful_stages:
        hint = f"its {_names(useful_stages[:1])}, which a pool with {_settings(useful_stages[0].makes)} serves"
    else:
        hint = (
            "a deploy_config whose pipeline ends with a stage that makes text (as qwen2_5_omni_thinker_only) is served"
        )
    raise SettingsError(f"args.deploy_config: {why}. {hint[0].upper()}{hint[1:]}")


def _check_device() -> None:
    """Raises: SettingsError where vLLM-Omni would fail in its own processes, with an error that has no message."""
    if current_omni_platform.get_device_count() == 0:
        raise SettingsError(
            f"engine=omni: vLLM-Omni {VERSION} finds no device. It has platforms for CUDA, ROCm, XPU, NPU and MUSA, "
            "and none for CPUs; there, engine vllm writes and engine diffusers paints"
        )


def _names(stages: Sequence[Stage]) -> str:
    return ", ".join(f"stage {one.number} ({one.name}) makes {one.makes}" for one in stages)


def _settings(makes: str | None) -> str:
    videos = {"image": ", painting: {videos: false}", "video": ", painting: {videos: true}"}
    return f"task: {_TASKS[makes or 'text']}{videos.get(makes or '', '')}"
