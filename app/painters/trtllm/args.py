"""A pool's settings as TensorRT-LLM's VisualGenArgs, checked as far as that is possible before anything is loaded."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from app.engines.pool_args import take_environment
from app.errors import SettingsError
from app.pools.schema import Pool

# Of its pipelines, by the name in model_index.json, whether they make videos. Others may exist: it knows them itself.
_MAKES_VIDEOS = {
    "FluxPipeline": False,
    "Flux2Pipeline": False,
    "LTX2Pipeline": True,
    "QwenImagePipeline": False,
    "WanPipeline": True,
}
_CACHES = ("teacache", "cache_dit")  # of cache_config
_SIZES = ("cfg_size", "ulysses_size", "ring_size", "tp_size")  # of parallel_config


class VisualArgs(NamedTuple):
    environment: dict[str, str]  # to be set where it is not set already
    fields: dict[str, Any]  # of VisualGenArgs, as plain data
    pipeline: str  # its class, as the model's index says

    @property
    def gpus(self) -> int:
        """Number of GPUs that it takes."""
        parallel, product = self.fields.get("parallel_config") or {}, 1
        for name in _SIZES:
            product *= parallel.get(name, 1)
        rows, columns = parallel.get("attn2d_size", (1, 1))
        return product * int(rows) * int(columns)


def visual_args(pool: Pool) -> VisualArgs:
    """Raises: SettingsError naming the bad argument."""
    arguments = dict(pool.args)
    environment = take_environment(arguments)
    if arguments.get("model", str(pool.model_dir)) != str(pool.model_dir):
        raise SettingsError(f"args.model={arguments['model']!r}: the pool's own settings say {str(pool.model_dir)!r}")
    for name in ("parallel_config", "cache_config", "cpu_offload_config", "compilation_config"):
        if arguments.get(name) is not None and not isinstance(arguments[name], Mapping):
            raise SettingsError(f"args.{name}={arguments[name]!r}: must be a mapping")
    _check_parallel(arguments.get("parallel_config") or {})
    _check_offload(arguments)
    if arguments.get("cache_config") is not None:
        backend = arguments["cache_config"].get("cache_backend")
        if backend not in _CACHES:
            raise SettingsError(f"args.cache_config.cache_backend={backend!r}: must be one of {', '.join(_CACHES)}")
    pipeline = _pipeline(pool.model_dir)
    videos = _MAKES_VIDEOS.get(pipeline)
    if videos is not None and videos != pool.painting.videos:
        raise SettingsError(f"painting.videos: {pipeline} says {str(videos).lower()}")
    return VisualArgs(environment, arguments | {"model": str(pool.model_dir)}, pipeline)


def _check_parallel(parallel: Mapping[str, Any]) -> None:
    """Raises: SettingsError."""
    where = "args.parallel_config"
    for name in _SIZES:
        size = parallel.get(name, 1)
        if type(size) is not int or size < 1 or (name == "cfg_size" and size > 2):
            most = "1 or 2" if name == "cfg_size" else "a number from 1"
            raise SettingsError(f"{where}.{name}={size!r}: must be {most}")
    mesh = parallel.get("attn2d_size", (1, 1))
    if not isinstance(mesh, list | tuple) or len(mesh) != 2 or any(type(n) is not int or n < 1 for n in mesh):
        raise SettingsError(f"{where}.attn2d_size={mesh!r}: must be two numbers from 1, rows and columns")
    if parallel.get("ring_size", 1) > 1 and mesh[0] * mesh[1] > 1:
        raise SettingsError(f"{where}.ring_size={parallel['ring_size']} with attn2d_size={mesh!r}: only one of them")


def _check_offload(fields: Mapping[str, Any]) -> None:
    """Raises: SettingsError."""
    if not (fields.get("cpu_offload_config") or {}).get("enable"):
        return
    if (fields.get("cuda_graph_config") or {}).get("enable"):
        raise SettingsError("args.cpu_offload_config with args.cuda_graph_config: graphs need weights that stay")


def _pipeline(folder: Path) -> str:
    """Raises: SettingsError."""
    try:
        return str(json.loads((folder / "model_index.json").read_text())["_class_name"])
    except FileNotFoundError:
        raise SettingsError(f"path={folder}: no model_index.json, by which TensorRT-LLM finds the pipeline") from None
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise SettingsError(f"path={folder}: its model_index.json can't be read ({exc!r})") from exc
