"""The pools file of `xylem serve MODEL`: a shipped one, or one pool that serves the model."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from app.cli import stack
from app.errors import SettingsError
from app.pools.engine_args import merged
from app.pools.engine_options import pool_settings
from app.pools.yaml_loader import read_yaml

SMOLLM2, SHAPES = "smollm2", "shapes"
_POOL = "decode-pool-a"
_OF_HUB = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", re.ASCII)


def model_pools(model: str | None, engine: str, options: Sequence[str], home: Path) -> str:
    """The text of the pools file. `model`: None for the one that the engine has. Raises: SettingsError."""
    if model == SHAPES:
        if options:
            raise SettingsError("shapes has two pools: engine options are for one; write a pools file instead")
        return stack.shipped_pools(SHAPES, home)
    if model is None or (model == SMOLLM2 and engine != "mock"):
        text = stack.shipped_pools(engine, home)
        return text if not options else _with_options(read_yaml(text), options)
    if engine == "mock":  # it has a tokenizer of its own, and answers under any name
        return _with_options({"pools": {_POOL: {"model": model, "engine": engine}}}, options)
    path = model_source(model)
    pool = {"model": _name(path), "engine": engine, "path": path}
    return _with_options({"pools": {_POOL: pool}}, options)


def model_source(model: str) -> str:
    """The model's `path` in a pools file. Raises: SettingsError."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return str(folder.resolve())
    if "://" in model:
        return model
    if address := hub_address(model):
        return address
    raise SettingsError(
        f"{model}: there is no such folder; it may also be organisation/name or hf://organisation/name@revision for a "
        f"model of the hub, s3://bucket/folder, or one that comes with Xylem: {SMOLLM2}, {SHAPES}"
    )


def _name(path: str) -> str:
    """The name that clients ask for: the hub's, as vLLM has it; of other places, the folder's."""
    scheme, _, name = path.rpartition("://")
    return name.partition("@")[0] if scheme == "hf" else name.rstrip("/").rpartition("/")[2]


def hub_address(name: str) -> str | None:
    """The address of `organisation/name`; None: it is written as no such name is."""
    return f"hf://{name}" if _OF_HUB.fullmatch(name) and not name.startswith((".", "/")) else None


def _with_options(document: dict[str, Any], options: Sequence[str]) -> str:
    ((name, pool),) = document["pools"].items()
    pools = {name: merged(pool, pool_settings(options))}
    return yaml.safe_dump({"pools": pools}, sort_keys=False, allow_unicode=True)
