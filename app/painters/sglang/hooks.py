"""A plugin of SGLang's, loaded in its diffusion workers: what they tell of each step, and how one is stopped.

SGLang has neither for all pipelines: those of diffusers tell nothing, and no request can be ended. This is imported by
SGLang's processes, and needs nothing else of the adapter.
"""

import logging
import os
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

FOLDER = "XYLEM_SGLANG_STOPS"  # in their environment: where a file with the request's name says that it is to end
_GROUP, _NAME = "sglang.multimodal_gen.plugins", "xylem"  # as in pyproject.toml
_RUNTIME = "sglang.multimodal_gen.runtime"
_STAGE = f"{_RUNTIME}.pipelines.diffusers_pipeline.DiffusersExecutionStage"
_BAR = f"{_RUNTIME}.managers.progress_reporter.ReportingTqdm"

# They log what ends a step, a stage and a request.
_LOGGERS = ("pipelines_core.stages.denoising", "pipelines_core.stages.base", "managers.gpu_worker")


class Stopped(Exception):
    """Nobody wants the picture any more."""


def register() -> None:
    """SGLang calls it in each of its processes."""
    from sglang.multimodal_gen.runtime.platforms.plugins import HookRegistry
    from sglang.srt.plugins.hook_registry import HookType

    for name in _LOGGERS:
        logging.getLogger(f"{_RUNTIME}.{name}").addFilter(_is_no_stop)
    HookRegistry.register(f"{_BAR}._advance", _end_of_step, HookType.AFTER)  # SGLang's own pipelines
    HookRegistry.register(f"{_STAGE}._build_pipeline_kwargs", _with_steps, HookType.AFTER)


def is_loaded() -> bool:
    """Whether SGLang's processes call `register`."""
    plugins = os.environ.get("SGLANG_PLUGINS")
    return bool(entry_points(group=_GROUP, name=_NAME)) and (not plugins or _NAME in plugins.split(","))


def _end_of_step(_result: object, bar: Any, *_args: object) -> None:
    _go_on(bar._request_ids)  # noqa: SLF001 (nothing public has them)


def _with_steps(kwargs: dict[str, Any], stage: Any, batch: Any) -> dict[str, Any]:
    """The arguments of the call of a pipeline of diffusers; those that it doesn't know are left out later."""
    from sglang.multimodal_gen.runtime.managers.progress_reporter import get_progress_reporter

    stage.diffusers_pipe.set_progress_bar_config(disable=True)
    if not batch.report_progress:
        return kwargs
    requests, reporter = batch.client_request_ids(), get_progress_reporter()

    def at_end(pipe: Any, step: int, _time: object, tensors: dict[str, Any]) -> dict[str, Any]:
        if reporter is not None:
            reporter.step(requests, step + 1, pipe.num_timesteps)
        _go_on(requests)
        return tensors

    return kwargs | {"callback_on_step_end": at_end}


def _is_no_stop(record: logging.LogRecord) -> bool:
    return not (record.exc_info and record.exc_info[0] is Stopped)


def _go_on(requests: list[str]) -> None:
    """Raises: Stopped."""
    folder = os.environ.get(FOLDER)
    if folder and any(Path(folder, request).exists() for request in requests):
        raise Stopped
