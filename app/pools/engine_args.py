"""An engine's own arguments, of all engines alike: from a file, the pools file and the command line."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from app.errors import SettingsError
from app.pools.schema import Pool
from app.pools.yaml_loader import read_yaml

_SECRET = re.compile(r"(^|[_-])(key|token|secret|password|passwd|credential)s?$", re.IGNORECASE)
_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")  # user and password in a URL
_MASK = "***"


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` goes before `base`, key by key at every depth. Lists are replaced as a whole; null is a value."""
    mapping = dict(base)
    for key, value in over.items():
        below = mapping.get(key)
        mapping[key] = merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return mapping


def with_args(pool: Pool, overrides: Mapping[str, Any]) -> Pool:
    """The pool with all its arguments in `args`: `overrides` before the pool's own before those of its `args_file`.

    Raises: SettingsError.
    """
    args = merged(merged(_read(pool.args_file), pool.args), overrides)
    return Pool.model_validate(pool.model_dump(exclude_unset=True, exclude={"args_file"}) | {"args": args})


def drafts(pool: Pool) -> bool:
    """Whether its engines draft tokens from the prompt, by vLLM's or SGLang's argument. Raises: SettingsError.

    An `args_file` may be on the hosts of workers only. Then it counts for nothing.
    """
    file = pool.args_file
    args = merged(_read(file if file is not None and file.exists() else None), pool.args)
    config = args.get("speculative_config")
    method = config.get("method") if isinstance(config, dict) else args.get("speculative_algorithm")
    return isinstance(method, str) and method.lower() == "ngram"


def _read(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        doc = read_yaml(file.read_text())
    except OSError as exc:
        raise SettingsError(f"args_file={file}: {exc.strerror}") from exc
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise SettingsError(f"args_file={file}: not YAML: {exc}") from exc
    if not isinstance(doc or {}, dict):
        raise SettingsError(f"args_file={file}: has to be a mapping, and is {type(doc).__name__}")
    return doc or {}


def read_overrides(texts: Sequence[str]) -> dict[str, Any]:
    """Parses `a.b=value`: dots lead into mappings, and the value is YAML. Raises: SettingsError."""
    overrides: dict[str, Any] = {}
    for setting in texts:
        path, equals, value = setting.partition("=")
        keys = path.split(".")
        if not equals or not all(keys):
            raise SettingsError(f"--set {setting}: has to be key=value, or key.key=value")
        try:
            override = read_yaml(value)
        except yaml.YAMLError as exc:
            raise SettingsError(f"--set {setting}: the value is not YAML: {exc}") from exc
        for key in reversed(keys):
            override = {key: override}
        overrides = merged(overrides, override)
    return overrides


def masked(value: Any, key: str = "") -> Any:
    """The same, for people: without secrets, and with names of what YAML can't show."""
    if isinstance(value, Mapping):
        return {str(name): masked(below, str(name)) for name, below in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [masked(below, key) for below in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else str(value)
    return _MASK if _SECRET.search(key) else _LOGIN.sub(_MASK, text)
