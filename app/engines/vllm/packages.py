"""Packages that a model's code or its processor imports, and that are not installed: named when the engine starts.

vLLM logs an import that fails and goes on: a model whose module can't be imported "failed to be inspected", and a
processor that imports something when it is used would refuse the first sound.
"""

import json
from importlib import import_module
from pathlib import Path

import structlog
from vllm import ModelRegistry
from vllm.config import ModelConfig
from vllm.config.multimodal import AudioDummyOptions, ImageDummyOptions, MultiModalDummyOptions, VideoDummyOptions
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.processing.context import TimingContext

from app.errors import SettingsError

log = structlog.get_logger(__name__)

# Small ones, and so milliseconds.
_TRIED = MultiModalDummyOptions(
    image=ImageDummyOptions(count=1, width=64, height=64),
    audio=AudioDummyOptions(count=1, length=16_000),
    video=VideoDummyOptions(count=1, num_frames=4, width=64, height=64),
)


def missing_package(model: Path) -> str | None:
    """Imports vLLM's module for the model's class. Returns the package that is missing for it, if any."""
    for name in json.loads((model / "config.json").read_text()).get("architectures") or ():
        module = getattr(ModelRegistry.models.get(name), "module_name", None)
        if module is None:
            continue
        try:
            import_module(module)
        except ImportError as exc:
            return _package(exc)
    return None


def check_processor(config: ModelConfig) -> None:
    """Let it process one of each kind that the pool takes. Blocks.

    Raises: SettingsError naming a package that it lacks.
    """
    try:
        processor = MULTIMODAL_REGISTRY.create_processor(config)
        for kind in _TRIED:
            if processor.info.allowed_mm_limits.get(kind):
                inputs = processor.get_dummy_inputs(config.max_model_len, {kind: 1}, _TRIED)
                processor.apply(inputs, TimingContext(enabled=False))
    except Exception as exc:  # it may want other pictures than ours: vLLM tries its own
        if package := _package(exc) or missing_package(Path(config.model)):
            raise SettingsError(lacks(package)) from exc
        log.warning("processor_not_tried", reason=str(exc))


def lacks(package: str) -> str:
    return f"This model needs a Python package that is not installed: {package}"


def _package(exc: BaseException | None) -> str | None:
    """The package whose import failed, if one is at the root of this error.

    transformers names several in a sentence of its own.
    """
    while exc is not None:
        if isinstance(exc, ModuleNotFoundError) and exc.name:
            return exc.name.partition(".")[0]
        if isinstance(exc, ImportError) and exc.__cause__ is None:
            return str(exc).strip()
        exc = exc.__cause__
    return None
